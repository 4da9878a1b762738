package s3

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

// Bounds of the answers that the client of AWS reads whole: all but objects.
const (
	errorBytes = 64 << 10
	otherBytes = 4 << 20 // 1000 objects of a listing
)

// answerIn bounds the wait for the beginning of an answer, whatever its context says: a listing has minutes.
const answerIn = 10 * time.Second

// client makes requests. It follows no redirect, which would take a page and its signature to another host, and
// bounds the answers.
type client struct{ *http.Transport }

// newClient returns the client with the settings of AWS's, such as a bundle of certificates.
func newClient(of aws.HTTPClient) aws.HTTPClient {
	built, ok := of.(*awshttp.BuildableClient)
	if !ok {
		return of
	}
	c := client{built.GetTransport()} // a copy
	c.ResponseHeaderTimeout = answerIn
	return c
}

func (c client) Do(r *http.Request) (*http.Response, error) {
	answer, err := c.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	switch {
	case answer.StatusCode >= http.StatusMultipleChoices:
		answer.Body = &body{answer.Body, errorBytes}
	case r.Method != http.MethodGet || r.URL.Query().Has("list-type"):
		answer.Body = &body{answer.Body, otherBytes}
	}
	return answer, nil
}

// errLong reports an answer that is longer than any that was asked for.
var errLong = errors.New("the answer is too long")

// body is that of an answer, of which some bytes may follow.
type body struct {
	io.ReadCloser
	most int64
}

func (b *body) Read(p []byte) (int, error) {
	if b.most <= 0 {
		return 0, errLong
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.most)])
	b.most -= int64(n)
	return n, err
}
