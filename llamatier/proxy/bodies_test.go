package proxy

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// TestBodiesAreBoundedTogether: a body for which there is no memory passes through as it comes,
// and nothing of it is lost.
func TestBodiesAreBoundedTogether(t *testing.T) {
	b := &budget{free: 4 * bodyStep}
	request := func(n int, known bool) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", n)))
		if !known {
			r.ContentLength = -1
		}
		return r
	}
	var held []func()
	for _, c := range []struct {
		n     int
		known bool
		read  bool
		free  int // after it
	}{
		{100, true, true, 4*bodyStep - 101},
		{bodyStep, false, true, 2*bodyStep - 101}, // two steps, to find the end
		{2 * bodyStep, true, false, 2*bodyStep - 101},
		{3 * bodyStep, false, false, bodyStep - 101}, // found out too late
		{0, true, true, bodyStep - 102},
		{bodyMax + 1, true, false, bodyStep - 102},
	} {
		r := request(c.n, c.known)
		body, done, err := b.readBody(r)
		require.NoError(t, err)
		held = append(held, done)
		require.Equal(t, c.read, body != nil, "%+v", c)
		require.Equal(t, c.free, b.free, "%+v", c)
		all, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Len(t, all, c.n)
		if c.read {
			require.True(t, bytes.Equal(all, body))
		}
	}
	for _, done := range held {
		done()
	}
	require.Equal(t, 4*bodyStep, b.free)

	r := request(1, false)
	r.Body = io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF))
	_, done, err := b.readBody(r)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	done()
	require.Equal(t, 4*bodyStep, b.free)
}

// TestALongBodyWithoutALength passes through in time.
func TestALongBodyWithoutALength(t *testing.T) {
	b := &budget{free: bodiesMax}
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", bodyMax+5)))
	r.ContentLength = -1
	body, done, err := b.readBody(r)
	require.NoError(t, err)
	require.Nil(t, body)
	n, err := io.Copy(io.Discard, r.Body)
	require.NoError(t, err)
	require.Equal(t, int64(bodyMax+5), n)
	done()
	require.Equal(t, bodiesMax, b.free)
}
