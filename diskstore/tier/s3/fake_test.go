package s3

import (
	"bytes"
	"crypto/sha256"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// fake is a store of one bucket in memory, whose clock a test sets. It is the transport of its clients.
type fake struct {
	mu       sync.Mutex
	objects  map[string]fakeObject
	now      func() time.Time
	ignores  bool                // conditions of PUTs
	before   func(*http.Request) // is called before each request; nil for nobody
	requests int
}

type fakeObject struct {
	content []byte
	at      time.Time
}

func newFake(now func() time.Time) *fake {
	return &fake{objects: make(map[string]fakeObject), now: now}
}

// open opens the tier of one machine.
func (f *fake) open(now func() time.Time) *Tier {
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String("http://fake"), UsePathStyle: true, Region: "us-east-1", HTTPClient: f, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider("a", "s", ""), RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
	})
	t := New(client, bucketName, "team/")
	t.now = now
	return t
}

func (o fakeObject) etag() string { return fmt.Sprintf(`"%x"`, sha256.Sum256(o.content)) }

func (f *fake) Do(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if f.before != nil {
		f.before(r)
	}
	w := httptest.NewRecorder()
	w.Header().Set("Date", f.now().UTC().Format(http.TimeFormat))
	f.mu.Lock()
	f.requests++
	f.serve(w, r)
	f.mu.Unlock()
	answer := w.Result()
	answer.Request = r
	return answer, nil
}

func (f *fake) serve(w *httptest.ResponseRecorder, r *http.Request) {
	key, _ := strings.CutPrefix(r.URL.Path, "/"+bucketName+"/")
	o, found := f.objects[key]
	switch {
	case r.URL.Query().Get("list-type") != "":
		f.list(w, r)
	case r.Method == http.MethodPut:
		f.put(w, r, key, o, found)
	case r.Method == http.MethodDelete:
		delete(f.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case !found:
		fakeError(w, http.StatusNotFound, "NoSuchKey")
	case r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != o.etag():
		fakeError(w, http.StatusPreconditionFailed, "PreconditionFailed")
	default:
		w.Header().Set("ETag", o.etag())
		http.ServeContent(w, r, "", o.at, bytes.NewReader(o.content))
	}
}

func fakeError(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
}

func (f *fake) put(w http.ResponseWriter, r *http.Request, key string, o fakeObject, found bool) {
	match, none := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
	if !f.ignores && (match != "" && (!found || match != o.etag()) || none != "" && found) {
		fakeError(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	var content []byte
	if r.Body != nil {
		content, _ = io.ReadAll(r.Body)
	}
	from, copied := strings.CutPrefix(r.Header.Get("X-Amz-Copy-Source"), bucketName+"/")
	if copied {
		content = f.objects[from].content
	}
	o = fakeObject{content, f.now().Truncate(time.Second)}
	f.objects[key] = o
	w.Header().Set("ETag", o.etag())
	if copied {
		fmt.Fprintf(w, "<CopyObjectResult><ETag>%s</ETag></CopyObjectResult>", o.etag())
	}
}

func (f *fake) list(w http.ResponseWriter, r *http.Request) {
	type entry struct {
		Key, ETag, LastModified string
		Size                    int
	}
	type folder struct{ Prefix string }
	var found struct {
		XMLName        xml.Name `xml:"ListBucketResult"`
		KeyCount       int
		Contents       []entry
		CommonPrefixes []folder
	}
	prefix, delimiter := r.URL.Query().Get("prefix"), r.URL.Query().Get("delimiter")
	for _, key := range slices.Sorted(maps.Keys(f.objects)) {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		if name, _, in := strings.Cut(rest, delimiter); delimiter != "" && in {
			if at := (folder{prefix + name + delimiter}); !slices.Contains(found.CommonPrefixes, at) {
				found.CommonPrefixes = append(found.CommonPrefixes, at)
			}
			continue
		}
		o := f.objects[key]
		found.Contents = append(found.Contents, entry{key, o.etag(), o.at.UTC().Format(time.RFC3339), len(o.content)})
	}
	found.KeyCount = len(found.Contents)
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(found)
}

// TestFake: what the tests in virtual time use keeps the contract.
func TestFake(t *testing.T) {
	tiertest.Contract(t, func(*testing.T) tier.Tier { return newFake(time.Now).open(time.Now) })
}

// keys are those of the store that begin so, below the prefix of the tier.
func (f *fake) keys(beginning string) (keys []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.objects {
		if rest, ok := strings.CutPrefix(key, "team/"+beginning); ok {
			keys = append(keys, rest)
		}
	}
	return keys
}

func requireKeys(t require.TestingT, f *fake, beginning string, n int) {
	require.Len(t, f.keys(beginning), n, beginning)
}
