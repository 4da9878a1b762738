package s3

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
)

// fault answers a request, or changes the answer of next.
type fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

// proxy stands before a server and makes faults.
type proxy struct {
	*httptest.Server
	fault    atomic.Pointer[fault]
	requests atomic.Int64
}

func newProxy(t *testing.T, endpoint string) *proxy {
	to, err := url.Parse(endpoint)
	require.NoError(t, err)
	next := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host // it is signed
	}}
	p := new(proxy)
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		if f := p.fault.Load(); f != nil {
			(*f)(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *proxy) set(f fault) {
	if f == nil {
		p.fault.Store(nil)
		return
	}
	p.fault.Store(&f)
}

// refuse answers as a store does.
func refuse(status int, code string, header ...string) fault {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>no</Message></Error>", code)
	}
}

// edit changes the whole answers to reads of objects, and leaves others as they are.
func edit(change func(answer *httptest.ResponseRecorder, w http.ResponseWriter)) fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method != http.MethodGet || r.Header.Get("Range") == "" {
			next.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		for name, values := range answer.Header() {
			w.Header()[name] = values
		}
		change(answer, w)
	}
}

// breakOff ends a connection.
func breakOff() { panic(http.ErrAbortHandler) }

var faults = map[string]fault{
	"hangs":  func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() },
	"resets": func(http.ResponseWriter, *http.Request, http.Handler) { breakOff() },
	"resets in the body": edit(func(a *httptest.ResponseRecorder, w http.ResponseWriter) {
		w.WriteHeader(a.Code)
		_, _ = w.Write(a.Body.Bytes()[:a.Body.Len()/2])
		breakOff()
	}),
	"expired credentials":   refuse(403, "ExpiredToken"),
	"forbidden":             refuse(403, "AccessDenied"),
	"a bucket that is gone": refuse(404, "NoSuchBucket"),
	"too many requests":     refuse(429, "TooManyRequests", "Retry-After", "3600"),
	"slow down":             refuse(503, "SlowDown", "Retry-After", "3600"),
	"internal error":        refuse(500, "InternalError"),
	"a clock that differs":  refuse(403, "RequestTimeTooSkewed", "Date", time.Now().Add(-20*time.Minute).UTC().Format(http.TimeFormat)),
	"full":                  refuse(507, "InsufficientStorage"),
	"a page to log in": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		fmt.Fprint(w, "<html>please log in</html>")
	},
	"drips": edit(func(a *httptest.ResponseRecorder, w http.ResponseWriter) {
		w.WriteHeader(a.Code)
		for range 20 { // a byte at a time, and never the whole
			_, _ = w.Write([]byte{0})
			_ = http.NewResponseController(w).Flush()
		}
		breakOff()
	}),
	"empty": edit(func(a *httptest.ResponseRecorder, w http.ResponseWriter) {
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(a.Code)
	}),
	"a short body": edit(func(a *httptest.ResponseRecorder, w http.ResponseWriter) {
		half := a.Body.Bytes()[:a.Body.Len()/2]
		w.Header().Set("Content-Length", fmt.Sprint(len(half)))
		w.WriteHeader(a.Code)
		_, _ = w.Write(half)
	}),
	"another body": edit(func(a *httptest.ResponseRecorder, w http.ResponseWriter) {
		w.WriteHeader(a.Code)
		_, _ = w.Write(bytes.Repeat([]byte{7}, a.Body.Len()))
	}),
	"one bit": edit(func(a *httptest.ResponseRecorder, w http.ResponseWriter) {
		w.WriteHeader(a.Code)
		body := a.Body.Bytes()
		body[len(body)/2] ^= 1
		_, _ = w.Write(body)
	}),
	"the whole in place of a range": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		r.Header.Del("Range")
		next.ServeHTTP(w, r)
	},
	"lists nothing": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Query().Get("list-type") == "" {
			next.ServeHTTP(w, r)
			return
		}
		fmt.Fprint(w, `<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>`)
	},
	"forgets": func(w http.ResponseWriter, r *http.Request, next http.Handler) { // what it lists
		if r.Method != http.MethodGet || r.URL.Query().Get("list-type") != "" {
			next.ServeHTTP(w, r)
			return
		}
		refuse(404, "NoSuchKey")(w, r, next)
	},
}

// bad are the faults that give pages other bytes: the server's page is taken for a damaged one.
var bad = map[string]bool{"another body": true, "one bit": true}

const (
	chainPages = 20
	// localPages is the number of pages for which the local tier of a test has room: one conversation.
	localPages = chainPages + 4
	// flushMost bounds a flush: pages that cannot be moved down keep it waiting.
	flushMost = 5 * time.Second
)

// openStore opens a store that keeps some pages, with a new local tier.
func openStore(t *testing.T, p *proxy, prefix string) *diskstore.Store {
	t.Helper()
	place, err := ParseAddress("s3://" + bucketName + "/" + prefix + "?endpoint=" + p.URL)
	require.NoError(t, err)
	below, err := place.Open(t.Context())
	require.NoError(t, err)
	s, err := diskstore.Open(t.Context(), diskstore.Options{
		Fingerprint: storetest.Fingerprint(1), PageTokens: storetest.Tokens, RemoteTier: below, RemoteTimeout: 2 * time.Second, ReadTimeout: 2 * time.Second,
		Local: diskstore.TierConfig{Root: filepath.Join(t.TempDir(), "root"), BudgetBytes: localPages * 56 << 10},
	})
	require.NoError(t, err)
	return s
}

// tokensOf are those of a conversation.
func tokensOf(conversation int32) []int32 {
	tokens := make([]int32, chainPages*storetest.Tokens)
	for i := range tokens {
		tokens[i] = 1000*conversation + int32(i)
	}
	return tokens
}

// put stores a conversation.
func put(t *testing.T, s *diskstore.Store, tokens []int32) {
	t.Helper()
	for _, page := range storetest.Chain(t, storetest.Fingerprint(1), storetest.Tokens, tokens) {
		require.NoError(t, s.Put(t.Context(), page))
	}
}

// restore reads what a store has of a chain, and returns the number of pages. Each has its rows.
func restore(t *testing.T, s *diskstore.Store, tokens []int32) (read int) {
	t.Helper()
	for i, ref := range s.Find(t.Context(), diskstore.Prompt{Tokens: tokens}).Exact {
		want := storetest.Chain(t, storetest.Fingerprint(1), storetest.Tokens, tokens)[i]
		rows := make([]byte, want.Layout.Size())
		err := s.Read(t.Context(), ref, want.Tokens, want.Layout, diskstore.Into{Rows: rows})
		if err != nil {
			return read
		}
		require.Equal(t, want.Payload, rows)
		read++
	}
	return read
}

// testFaults: whatever the server does, a page is whole or missing, a Put succeeds, and Close ends. Nothing
// of what the server has is lost by it.
func testFaults(t *testing.T, endpoint string) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t, endpoint)
			first := openStore(t, p, t.Name())
			put(t, first, tokensOf(1))
			put(t, first, tokensOf(2)) // they move the first one down
			put(t, first, tokensOf(3))
			require.NoError(t, first.Flush(t.Context()))
			require.NoError(t, first.Close())

			p.set(fault)
			second := openStore(t, p, t.Name())
			restore(t, second, tokensOf(1))
			put(t, second, tokensOf(4))
			short, cancel := context.WithTimeout(t.Context(), flushMost)
			defer cancel()
			_ = second.Flush(short)
			_ = second.Close()

			p.set(nil)
			third := openStore(t, p, t.Name())
			if !bad[name] {
				require.GreaterOrEqual(t, restore(t, third, tokensOf(1)), chainPages-1)
			}
			require.NoError(t, third.Close())
		})
	}
}
