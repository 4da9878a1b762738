package listen

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func state(context.Context) (telemetry.State, error) {
	return telemetry.State{Live: true, Tiers: []telemetry.Tier{{Name: "local", Root: "/pages", Pages: 3}}}, nil
}

// quiet drops log lines.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// start answers at an address until the test ends, and returns the address in force.
func start(t *testing.T, addr string, read Read, log *slog.Logger, retry <-chan time.Time) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	opened, done := make(chan net.Addr, 1), make(chan struct{})
	l := &listener{log: log, handler: handler("1.2.3", read, new(hints)), opened: func(addr net.Addr) { opened <- addr }}
	go func() {
		defer close(done)
		l.run(ctx, addr, retry)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		http.DefaultClient.CloseIdleConnections()
	})
	return (<-opened).String()
}

// startState answers with a state, on some port.
func startState(t *testing.T) string { return start(t, "127.0.0.1:0", state, quiet(), nil) }

func do(t *testing.T, method, url, host string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	req.Host = host
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(body)
}

func TestMetricsAndPage(t *testing.T) {
	addr := startState(t)

	resp, body := do(t, "GET", "http://"+addr+"/metrics", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "text/plain; version=0.0.4; charset=utf-8", resp.Header.Get("Content-Type"))
	require.Contains(t, body, `ollama_kv_tier_pages{root="/pages",tier="local"} 3`)
	require.Contains(t, body, `ollama_kv_collector_info{version="1.2.3"} 1`)
	require.Equal(t, "default-src 'none'; frame-ancestors 'none'", resp.Header.Get("Content-Security-Policy"))

	head, nothing := do(t, "HEAD", "http://"+addr+"/metrics", "")
	require.Equal(t, resp.ContentLength, head.ContentLength)
	require.Empty(t, nothing)

	_, body = do(t, "GET", "http://"+addr+"/", "")
	require.Contains(t, strings.ToLower(body), "<!doctype html>")
	_, body = do(t, "GET", "http://"+addr+"/state.json", "")
	require.Contains(t, body, `"root":"/pages"`)
	for _, path := range []string{"/metrics", "/"} {
		resp, _ := do(t, "GET", "http://"+addr+path, "")
		require.Equal(t, "no-store", resp.Header.Get("Cache-Control"), path)
		require.Equal(t, "nosniff", resp.Header.Get("X-Content-Type-Options"), path)
		require.Equal(t, "same-origin", resp.Header.Get("Cross-Origin-Resource-Policy"), path)
		require.Empty(t, resp.Header.Get("Access-Control-Allow-Origin"), path)
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"} {
			resp, _ := do(t, method, "http://"+addr+path, "")
			require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode, "%s %s", method, path)
			require.Equal(t, "GET, HEAD", resp.Header.Get("Allow"))
		}
	}
}

// A page elsewhere that made its name point here gets nothing, on either path.
func TestHosts(t *testing.T) {
	addr := startState(t)
	for host, want := range map[string]int{
		"": 200, "localhost": 200, "LOCALHOST:9401": 200, "localhost.": 200, "127.0.0.1:80": 200, "[::1]:80": 200, "[::1]": 200, "10.0.0.7": 200,
		"gpu.local": 200, "host.docker.internal:1": 200, "a.localhost": 200,
		"evil.example": 403, "evil.example:9401": 403, "127.0.0.1.evil.example": 403, "localhost.evil.example": 403, "evillocal": 403, "1.2.3.4.5": 403,
	} {
		for _, path := range []string{"/metrics", "/"} {
			resp, body := do(t, "GET", "http://"+addr+path, host)
			require.Equal(t, want, resp.StatusCode, "%s%s", host, path)
			require.Equal(t, want == 403, strings.Contains(body, "Ask for localhost"), body)
		}
	}
}

// Over a port that is open to others, their names for this machine are answered.
func TestHostsOfAnOpenPort(t *testing.T) {
	for local, want := range map[string]int{"192.0.2.1:80": 200, "[2001:db8::1]:80": 200, "127.0.0.1:80": 403, "[::ffff:127.0.0.1]:80": 403, "[::1]:80": 403} {
		addr, err := net.ResolveTCPAddr("tcp", local)
		require.NoError(t, err)
		r := httptest.NewRequest("GET", "http://metrics.example/metrics", nil)
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, addr))
		w := httptest.NewRecorder()
		Metrics("", state).ServeHTTP(w, r)
		require.Equal(t, want, w.Code, local)
	}
	w := httptest.NewRecorder()
	Metrics("", state).ServeHTTP(w, httptest.NewRequest("GET", "http://metrics.example/metrics", nil))
	require.Equal(t, 403, w.Code, "an unknown address counts as loopback")
}

// An error of the files names paths, which the answer does not. Before anything was reported there is no
// failure to alert on.
func TestNoState(t *testing.T) {
	for err, want := range map[error]struct {
		status int
		text   string
	}{
		errors.New("open /secret/telemetry: permission denied"): {http.StatusServiceUnavailable, "could not be read"},
		fmt.Errorf("nothing in /secret: %w", fs.ErrNotExist):    {http.StatusOK, "\nollama_kv_up 0\n"},
	} {
		w := httptest.NewRecorder()
		Metrics("", func(context.Context) (telemetry.State, error) { return telemetry.State{}, err }).ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/metrics", nil))
		require.Equal(t, want.status, w.Code)
		require.Contains(t, w.Body.String(), want.text)
		require.NotContains(t, w.Body.String(), "secret")
	}
}

// More requests than atOnce are turned away while a reader hangs, and answered after.
func TestRequestsAtOnce(t *testing.T) {
	entered, release := make(chan struct{}, atOnce), make(chan struct{})
	h := Metrics("", func(ctx context.Context) (telemetry.State, error) {
		_, bounded := ctx.Deadline()
		if !bounded {
			return telemetry.State{}, errors.New("no deadline")
		}
		entered <- struct{}{}
		<-release
		return telemetry.State{}, nil
	})
	ask := func() int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/metrics", nil))
		return w.Code
	}
	var all sync.WaitGroup
	codes := make([]int, atOnce)
	for i := range codes {
		all.Add(1)
		go func() {
			defer all.Done()
			codes[i] = ask()
		}()
	}
	for range atOnce {
		<-entered
	}
	require.Equal(t, http.StatusServiceUnavailable, ask())
	close(release)
	all.Wait()
	for _, code := range codes {
		require.Equal(t, http.StatusOK, code)
	}
	require.Equal(t, http.StatusOK, ask())
}

// lines are the messages of a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A port in use is one line, and is taken once it is free.
func TestPortInUse(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	var log lines
	tick := make(chan time.Time)
	opened, released := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(released)
		tick <- time.Time{} // tried again, in vain
		tick <- time.Time{}
		other.Close()
		select {
		case tick <- time.Time{}:
		case <-opened: // the try before may have come after the end of the other
		}
	}()
	addr := start(t, other.Addr().String(), state, slog.New(slog.NewTextHandler(&log, nil)), tick)
	close(opened)
	<-released
	require.Equal(t, other.Addr().String(), addr)
	resp, _ := do(t, "GET", "http://"+addr+"/metrics", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, 1, strings.Count(log.String(), "level=INFO msg=\"kv tier: another process listens for metrics"), log.String())
	require.Contains(t, log.String(), Variable)
}

// A listener that fails under a server ends that server, and not its process.
func TestListenerFails(t *testing.T) {
	port, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &listener{log: quiet(), opened: func(net.Addr) { port.Close() }}
	require.ErrorIs(t, l.serve(t.Context(), port), net.ErrClosed)
}

// TestTheEndIsTheEnd: an address is not taken once more, although a retry is due.
func TestTheEndIsTheEnd(t *testing.T) {
	due := make(chan time.Time)
	close(due)
	for range 20 {
		ctx, end := context.WithCancel(t.Context())
		opened := 0
		l := &listener{log: quiet(), handler: http.NotFoundHandler(), opened: func(net.Addr) { opened++; end() }}
		l.run(ctx, "127.0.0.1:0", due)
		require.Equal(t, 1, opened)
	}
}

// A process that ends while it cannot listen ends at once.
func TestEndWithoutAPort(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var log lines
	tick, done := make(chan time.Time), make(chan struct{})
	go func() {
		defer close(done)
		(&listener{log: slog.New(slog.NewTextHandler(&log, nil))}).run(ctx, "192.0.2.1:9401", tick) // of no machine
	}()
	tick <- time.Time{}
	cancel()
	<-done
	require.Contains(t, log.String(), "cannot listen for metrics")
}

// The owner is told when the address is open to others.
func TestOpenAddressIsNamed(t *testing.T) {
	for addr, open := range map[string]bool{"0.0.0.0:0": true, "127.0.0.1:0": false} {
		var log lines
		start(t, addr, state, slog.New(slog.NewTextHandler(&log, nil)), nil)
		require.Equal(t, open, strings.Contains(log.String(), "everyone who reaches this address"))
	}
}

// TestServe answers at the address that the variable names, with the state of a root.
func TestServe(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1:9401": "127.0.0.1:9401", ":9401": "127.0.0.1:9401", "9401": "127.0.0.1:9401", "0.0.0.0:9401": "0.0.0.0:9401",
		"[::1]:9401": "[::1]:9401", "localhost:9401": "localhost:9401", "[::]:0": "[::]:0",
	} {
		got, err := Address(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
	}
	for _, text := range []string{":", "localhost:", "a:b:c", "127.0.0.1:99999", "::1:9401", "http://localhost:9401", "x", ""} {
		_, err := Address(text)
		require.ErrorContains(t, err, Variable, text)
		require.ErrorContains(t, err, "such as 127.0.0.1:9401", text)
		t.Setenv(Variable, text)
		var log lines
		Serve(t.Context(), t.TempDir(), Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		require.Equal(t, text != "", strings.Contains(log.String(), "nobody listens for metrics"), text)
	}
	t.Setenv(Variable, "0")
	ctx, cancel := context.WithCancel(t.Context())
	opened, done := make(opening, 1), make(chan struct{})
	go func() {
		defer close(done)
		Serve(ctx, t.TempDir(), Options{Log: slog.New(slog.NewTextHandler(opened, nil))})
	}()
	resp, body := do(t, "GET", "http://"+<-opened+"/metrics", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Contains(t, body, "ollama_kv_up 0")
	http.DefaultClient.CloseIdleConnections()
	cancel()
	<-done
}

// opening takes the address from the log line of a listener.
type opening chan string

func (o opening) Write(line []byte) (int, error) {
	_, addr, _ := strings.Cut(strings.TrimSpace(string(line)), "address=")
	o <- addr
	return len(line), nil
}

// TestHintsOnThePage: the page shows what Hints has found, also while a later look hangs; metrics do not wait.
func TestHintsOnThePage(t *testing.T) {
	looks, answer := make(chan struct{}, 8), make(chan []string)
	h := &hints{look: func() []string { looks <- struct{}{}; return <-answer }}
	read := h.addTo(state)
	said := func() []string {
		s, err := read(t.Context())
		require.NoError(t, err)
		require.Equal(t, "/pages", s.Tiers[0].Root)
		return s.Hints
	}
	require.Empty(t, said(), "nobody waits for the first look")
	require.Empty(t, said())
	answer <- []string{"replaced"}
	for said() == nil {
		runtime.Gosched()
	}
	require.Equal(t, []string{"replaced"}, said())
	require.Len(t, looks, 1)

	h.mu.Lock()
	h.at = h.at.Add(-hintsEvery)
	h.mu.Unlock()
	require.Equal(t, []string{"replaced"}, said(), "the second look hangs")
	answer <- nil
	for said() != nil {
		runtime.Gosched()
	}
	require.Len(t, looks, 2)
}

// A connection past the bound is answered: the one that has been idle longest gives way.
func TestIdleConnectionsGiveWay(t *testing.T) {
	addr := startState(t)
	held := make([]net.Conn, connectionsMax)
	for i := range held {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		held[i] = conn
		if i%2 == 0 { // the others never ask
			requireAnswer(t, conn)
		}
	}
	for range 2 * connectionsMax {
		late, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer late.Close()
		require.NoError(t, late.SetDeadline(time.Now().Add(30*time.Second)))
		requireAnswer(t, late)
	}
	for _, conn := range held {
		_, err := io.Copy(io.Discard, conn)
		require.NoError(t, err, "the server has closed it")
	}
}

// A request that announces a body and sends none gives its place up.
func TestBodiesAreNotWaitedFor(t *testing.T) {
	addr := startState(t)
	for range connectionsMax {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(requestTimeout/2)))
		_, err = io.Copy(io.Discard, conn)
		require.NoError(t, err, "the server has answered and closed it")
	}
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	requireAnswer(t, conn)
}

func requireAnswer(t *testing.T, conn net.Conn) {
	t.Helper()
	_, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
}

// A connection too many is closed while all others are being answered, and the one that rests longest
// where some are not.
func TestConnectionsOverTheBound(t *testing.T) {
	var b bounded
	connect := func() (server, client net.Conn) {
		server, client = net.Pipe()
		t.Cleanup(func() { server.Close() })
		b.state(server, http.StateNew)
		return server, client
	}
	requireClosed := func(client net.Conn) {
		_, err := client.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	}
	first, client := connect()
	b.state(first, http.StateActive)
	for range connectionsMax - 1 {
		answered, _ := connect()
		b.state(answered, http.StateActive)
	}
	late, lateClient := connect()
	requireClosed(lateClient)
	b.state(late, http.StateClosed)

	b.state(first, http.StateIdle)
	connect()
	requireClosed(client)
	b.state(first, http.StateClosed)
	require.Equal(t, connectionsMax, b.open)
	require.Len(t, b.resting, 1)
}

// Oversized headers are refused.
func TestHeadersAreBounded(t *testing.T) {
	addr := startState(t)
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+addr+"/metrics", nil)
	require.NoError(t, err)
	req.Header.Set("X", strings.Repeat("x", 64<<10))
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)
}

// deadlines is an answer that notes the deadlines of its connection, and whether it was written.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
	err error
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.set = append(d.set, at)
	return nil
}

func (d *deadlines) Write(text []byte) (int, error) {
	if d.err != nil {
		return 0, d.err
	}
	return d.ResponseRecorder.Write(text)
}

// TestClientThatNeverReads: it holds a place for a bounded time on a server that has no bounds,
// and later answers over the connection have none.
func TestClientThatNeverReads(t *testing.T) {
	d := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	Metrics("1", state).ServeHTTP(d, httptest.NewRequest(http.MethodGet, "http://localhost/metrics", nil))
	require.Equal(t, http.StatusOK, d.Code)
	require.Len(t, d.set, 2)
	require.WithinDuration(t, time.Now(), d.set[0], 2*writeTimeout)
	require.True(t, d.set[1].IsZero())

	d = &deadlines{ResponseRecorder: httptest.NewRecorder(), err: errors.New("timeout")}
	Metrics("1", state).ServeHTTP(d, httptest.NewRequest(http.MethodGet, "http://localhost/metrics", nil))
	require.Len(t, d.set, 1, "a connection that failed stays bounded")
}
