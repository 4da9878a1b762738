package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/kvtier/kvtier/llamatier"
)

// end is the end of an answer, as it passes.
type end struct {
	io.ReadCloser
	last []byte // at most twice endBytes
	over bool   // the engine has sent all
}

// endKey is the key of an *end in a request's context.
type endKey struct{}

// endBytes is more than llama-server sends after the account of an answer begins.
const endBytes = 16 << 10

// hear begins to listen to a body.
func (e *end) hear(body io.ReadCloser) io.ReadCloser {
	e.ReadCloser = body
	return e
}

// Read implements io.Reader.
func (e *end) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	e.last = append(e.last, p[max(0, n-endBytes):n]...)
	if len(e.last) > 2*endBytes {
		e.last = append(e.last[:0], e.last[len(e.last)-endBytes:]...)
	}
	e.over = e.over || errors.Is(err, io.EOF)
	return n, err
}

// answer returns the engine's account of the answer; nil unless all of the answer was heard.
func (e *end) answer() *llamatier.Answer {
	at := bytes.LastIndex(e.last, []byte(`"timings":`))
	if !e.over || at < 0 {
		return nil
	}
	var a struct {
		Cached    *int    `json:"cache_n"`
		Processed *int    `json:"prompt_n"`
		Generated *int    `json:"predicted_n"`
		Millis    float64 `json:"prompt_ms"`
	}
	dec := json.NewDecoder(bytes.NewReader(e.last[at+len(`"timings":`):]))
	if dec.Decode(&a) != nil || a.Cached == nil || a.Processed == nil || a.Generated == nil {
		return nil
	}
	return &llamatier.Answer{Cached: *a.Cached, Processed: *a.Processed, Generated: *a.Generated, Took: time.Duration(a.Millis * float64(time.Millisecond))}
}
