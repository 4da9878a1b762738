package listen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/page"
)

// Variable names the address of the listener.
const Variable = "OLLAMA_KV_METRICS_ADDR"

// Bounds of the listener.
const (
	connectionsMax  = 64
	headerBytesMax  = 16 << 10
	headerTimeout   = 5 * time.Second
	requestTimeout  = 10 * time.Second
	answerTimeout   = 30 * time.Second
	idleTimeout     = time.Minute
	shutdownTimeout = time.Second
)

// retryAfter is the time between two tries to get a port that another process has, such as another
// daemon of the same setup.
const retryAfter = time.Second

// Options are what the listener tells besides the state of a root.
type Options struct {
	Version string       // of the program
	Log     *slog.Logger // nil for slog.Default
	// Hints reads sentences about the installation for the web page, once a minute while somebody looks at
	// it; it may take its time. Nil: there are none.
	Hints func() []string
}

// Serve listens at the address that [Variable] names, if it names one, until ctx ends. A port that is in
// use is tried again, since the process that has it may end; the log says so once. It also says when the
// address is none, and Serve returns.
func Serve(ctx context.Context, root string, opt Options) {
	value := env.Value(Variable)
	if value == "" {
		return
	}
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	addr, err := Address(value)
	if err != nil {
		opt.Log.Warn("kv tier: nobody listens for metrics", "reason", err)
		return
	}
	ticker := time.NewTicker(retryAfter)
	defer ticker.Stop()
	read := func(ctx context.Context) (telemetry.State, error) { return collect.Read(ctx, root) }
	(&listener{log: opt.Log, handler: handler(opt.Version, read, &hints{look: opt.Hints})}).run(ctx, addr, ticker.C)
}

type listener struct {
	log     *slog.Logger
	handler http.Handler
	opened  func(net.Addr) // of tests; nil for nobody
}

// run listens until ctx ends, and tries again after each retry.
func (l *listener) run(ctx context.Context, addr string, retry <-chan time.Time) {
	for said := false; ctx.Err() == nil; {
		var config net.ListenConfig
		port, err := config.Listen(ctx, "tcp", addr)
		if err == nil {
			said = false
			err = l.serve(ctx, port)
		}
		switch {
		case said || ctx.Err() != nil:
		case errors.Is(err, syscall.EADDRINUSE): // as by another daemon, which tells the same
			l.log.Info("kv tier: another process listens for metrics; trying again until the address is free. If it is not kvtier, set "+Variable+" to another one", "address", addr)
		default:
			l.log.Warn("kv tier: cannot listen for metrics; trying again. Set "+Variable+" to another address", "address", addr, "error", err)
		}
		said = true
		select {
		case <-ctx.Done():
			return
		case <-retry:
		}
	}
}

// serve answers until ctx ends, or until the listener fails.
func (l *listener) serve(ctx context.Context, port net.Listener) error {
	addr := port.Addr()
	l.log.Info("kv tier: listening for metrics", "address", addr.String())
	if at, err := netip.ParseAddrPort(addr.String()); err == nil && !at.Addr().Unmap().IsLoopback() {
		l.log.Warn("kv tier: metrics are shown to everyone who reaches this address", "address", addr.String())
	}
	if l.opened != nil {
		l.opened(addr)
	}
	places := new(bounded)
	server := &http.Server{
		Handler:           l.handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytesMax,
		ErrorLog:          log.New(io.Discard, "", 0), // strangers could fill the log
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnState:         places.state,
	}
	ended := make(chan error, 1)
	go func() {
		ended <- server.Serve(port)
	}()
	select {
	case <-ctx.Done():
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		_ = server.Shutdown(short) // an answer that takes longer is cut
		_ = server.Close()
		<-ended
		return nil
	case err := <-ended:
		_ = server.Close() // connections that are open
		return err
	}
}

// handler answers /metrics, and shows the page at all other paths.
func handler(version string, read Read, onPage *hints) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", Metrics(version, read))
	mux.Handle("/", guard(page.Handler(onPage.addTo(read))))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 { // nobody waits for a body: its connection would count as active
			_ = http.NewResponseController(w).SetReadDeadline(time.Now())
			w.Header().Set("Connection", "close")
		}
		mux.ServeHTTP(w, r)
	})
}

// Address completes HOST:PORT, or a port alone.
func Address(text string) (string, error) {
	if text != "" && !strings.Contains(text, ":") {
		text = ":" + text
	}
	host, port, err := net.SplitHostPort(text)
	if err == nil && port != "" {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil || port == "" {
		return "", fmt.Errorf("%s=%q is not HOST:PORT, such as 127.0.0.1:9401", Variable, text)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// hints are the latest sentences that look has found. A look that hangs is the only one.
type hints struct {
	look func() []string // nil for none

	mu      sync.Mutex
	said    []string
	at      time.Time
	looking bool
}

// hintsEvery is the time after which hints are looked for again.
const hintsEvery = time.Minute

// latest does not wait: the page asks again after two seconds.
func (h *hints) latest() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.look != nil && !h.looking && time.Since(h.at) >= hintsEvery {
		h.looking = true
		go func() {
			said := h.look()
			h.mu.Lock()
			defer h.mu.Unlock()
			h.said, h.at, h.looking = said, time.Now(), false
		}()
	}
	return h.said
}

// addTo adds the latest hints to the states that read returns.
func (h *hints) addTo(read Read) Read {
	return func(ctx context.Context) (telemetry.State, error) {
		state, err := read(ctx)
		state.Hints = h.latest()
		return state, err
	}
}

// bounded has a new connection over connectionsMax close another one: that of which no request is being
// answered, for the longest time; itself, where all others are busy. So no user of this machine keeps all
// others away.
type bounded struct {
	mu      sync.Mutex
	open    int
	resting []net.Conn // of which no request is being answered, the longest first
}

// state is http.Server.ConnState.
func (b *bounded) state(conn net.Conn, state http.ConnState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resting = slices.DeleteFunc(b.resting, func(c net.Conn) bool { return c == conn })
	switch state {
	case http.StateNew:
		b.open++
		b.resting = append(b.resting, conn)
		if b.open > connectionsMax {
			b.resting[0].Close()
			b.resting = slices.Delete(b.resting, 0, 1)
		}
	case http.StateIdle:
		b.resting = append(b.resting, conn)
	case http.StateClosed:
		b.open--
	}
}
