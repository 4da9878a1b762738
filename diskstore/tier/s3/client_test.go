package s3

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/guard"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// openBefore opens a tier in a server that answers every request so.
func openBefore(t *testing.T, answer http.HandlerFunc) *Tier {
	t.Helper()
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "access", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "session",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		t.Setenv(name, value)
	}
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return openAt(t, server.URL)
}

// calls are all that a tier does with a store.
func calls(tr *Tier) map[string]func(context.Context) error {
	name := tiertest.Page(1)
	branch := tier.Branch{Fingerprint: tiertest.Fingerprint, Prefix: pagefile.Key{1}, Longer: true}
	return map[string]func(context.Context) error{
		"Find":   func(ctx context.Context) error { _, err := tr.Find(ctx, []pagefile.Name{name}, false); return err },
		"Remove": func(ctx context.Context) error { _, err := tr.Remove(ctx, tier.Info{Name: name}); return err },
		"Survey": func(ctx context.Context) error { _, _, err := tr.Survey(ctx); return err },
		"ReadAt": func(ctx context.Context) error {
			return (&blob{tr, file{Info: tier.Info{Bytes: 9}, key: "k", etag: `"e"`}}).ReadAt(ctx, make([]byte, 9), 0)
		},
		"AddBranch": func(ctx context.Context) error { return tr.AddBranch(ctx, branch, true) },
		"Branches": func(ctx context.Context) error {
			_, err := tr.Branches(ctx, tiertest.Fingerprint, []byte{1})
			return err
		},
		"Account": func(ctx context.Context) error { _, err := tr.Account(ctx, nil); return err },
		"Lock":    func(ctx context.Context) error { _, err := tr.Lock(ctx); return err },
		"Commit": func(ctx context.Context) error {
			up, err := tr.Create(ctx, name)
			if err == nil {
				_, err = up.Commit(ctx, time.Now())
			}
			return err
		},
	}
}

// TestRedirects: no request goes to another host, with what it says.
func TestRedirects(t *testing.T) {
	var followed atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Add(1) }))
	t.Cleanup(other.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		tr := openBefore(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+r.URL.RequestURI(), status)
		})
		for call, do := range calls(tr) {
			require.Error(t, do(t.Context()), "%d: %s", status, call)
		}
		require.Zero(t, followed.Load(), status)
	}
}

// TestEndlessAnswers: an answer that goes on is an error, and takes little memory.
func TestEndlessAnswers(t *testing.T) {
	succeeds := map[string]bool{"listing": true, "name": true}
	const most = 48 << 20 // of two attempts, with what is on its way
	for name, begin := range map[string]func(w http.ResponseWriter) string{
		"error":   func(w http.ResponseWriter) string { w.WriteHeader(500); return "<Error><Code>" },
		"refusal": func(w http.ResponseWriter) string { w.WriteHeader(403); return "" },
		"listing": func(http.ResponseWriter) string { return "<ListBucketResult>" },
		"name":    func(http.ResponseWriter) string { return "<ListBucketResult><Contents><Key>" },
	} {
		var sent atomic.Int64
		tr := openBefore(t, func(w http.ResponseWriter, r *http.Request) {
			more := []byte(strings.Repeat("<Contents><Key>a</Key></Contents>", 1000))
			if name != "listing" {
				more = bytes.Repeat([]byte("x"), len(more))
			}
			for text := []byte(begin(w)); ; text = more {
				n, err := w.Write(text)
				if sent.Add(int64(n)); err != nil || sent.Load() > 2*most {
					return
				}
			}
		})
		for call, do := range calls(tr) {
			sent.Store(0)
			err := do(t.Context())
			require.Equal(t, succeeds[name] && call == "AddBranch", err == nil, "%s: %s: %v", name, call, err) // its status says all
			require.Less(t, sent.Load(), int64(most), "%s: %s", name, call)
		}
	}
}

// TestListingsWithoutAnEnd: a store that tells the same part of a listing again and again, or of one page more objects
// than anybody writes, is an error.
func TestListingsWithoutAnEnd(t *testing.T) {
	for _, part := range []string{"", "<Contents><Key>a</Key></Contents>", "<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>"} {
		var asked atomic.Int64
		tr := openBefore(t, func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) > 10 {
				w.WriteHeader(http.StatusTeapot)
				return
			}
			fmt.Fprintf(w, "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>%s</ListBucketResult>", part)
		})
		_, err := tr.list(t.Context(), version, listMost)
		require.ErrorContains(t, err, "repeats", part)
		_, err = tr.folders(t.Context(), version)
		require.ErrorContains(t, err, "repeats", part)
	}
	var asked atomic.Int64
	tr := openBefore(t, func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		fmt.Fprintf(w, "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>%d</NextContinuationToken>", n)
		for i := range 1000 {
			fmt.Fprintf(w, "<Contents><Key>%d-%d</Key></Contents>", n, i)
		}
		fmt.Fprint(w, "</ListBucketResult>")
	})
	_, err := tr.Find(t.Context(), []pagefile.Name{tiertest.Page(1)}, false)
	require.ErrorContains(t, err, "more than")
	require.LessOrEqual(t, asked.Load(), int64(10))
}

// TestNoAnswer: a store that takes requests and never answers is noticed, also in a listing that may take long.
func TestNoAnswer(t *testing.T) {
	tr := openBefore(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	c := tr.client.Options().HTTPClient.(client)
	require.Equal(t, answerIn, c.ResponseHeaderTimeout)
	c.ResponseHeaderTimeout = time.Millisecond
	for call, do := range calls(tr) {
		require.ErrorContains(t, do(context.Background()), "timeout awaiting response headers", call)
	}
}

// TestReadOnlyKey: a key that may only read does so, however often a write is refused.
func TestReadOnlyKey(t *testing.T) {
	f := newFake(time.Now)
	tr := openBefore(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			refuse(http.StatusForbidden, "AccessDenied")(w, r, nil)
			return
		}
		answer, err := f.Do(r)
		if err == nil {
			w.WriteHeader(answer.StatusCode)
			_, _ = io.Copy(w, answer.Body)
		}
	})
	guarded := guard.New(tr, time.Minute, time.Minute, slog.New(slog.DiscardHandler), time.Now, func() {})
	for range 10 {
		require.ErrorIs(t, guarded.Touch(t.Context(), tiertest.Page(1), time.Now()), tier.ErrNotFound)
		up, err := guarded.Create(t.Context(), tiertest.Page(1))
		require.NoError(t, err)
		_, err = up.Commit(t.Context(), time.Now())
		require.ErrorIs(t, err, fs.ErrPermission)
		up.Abort()
	}
}
