package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
)

const (
	// bodyMax bounds a request that is read to be understood, in bytes.
	bodyMax = 64 << 20
	// bodiesMax bounds all such requests together. Understanding takes a few times the memory
	// of the body.
	bodiesMax = 128 << 20
	// bodyStep is taken at a time for a body whose length is not known.
	bodyStep = 1 << 20
)

// budget is a number of bytes.
type budget struct {
	mu   sync.Mutex
	free int
}

// take takes bytes if there are as many.
func (b *budget) take(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.free {
		return false
	}
	b.free -= n
	return true
}

func (b *budget) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
}

// readBody reads a request's body, unless there is no memory for it; then the body is nil. The
// request still has all of its body. The caller calls done when the body is not needed any more.
func (b *budget) readBody(r *http.Request) (body []byte, done func(), err error) {
	taken := 0
	done = func() { b.give(taken) }
	step := bodyStep
	switch {
	case r.ContentLength > bodyMax:
		return nil, done, nil
	case r.ContentLength >= 0:
		step = int(r.ContentLength) + 1 // one byte more, to find the end
	}
	var read bytes.Buffer
	rest := r.Body
	for {
		if taken+step > bodyMax+1 || !b.take(step) {
			r.Body = joined{io.MultiReader(&read, rest), rest}
			return nil, done, nil
		}
		taken += step
		switch _, err := io.CopyN(&read, rest, int64(step)); {
		case errors.Is(err, io.EOF):
			body = read.Bytes()
			r.Body = joined{bytes.NewReader(body), rest}
			return body, done, nil
		case err != nil:
			return nil, done, err
		}
	}
}

// joined is a body that was read in part.
type joined struct {
	io.Reader
	io.Closer
}
