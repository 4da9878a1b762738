package listen

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/kvtier/kvtier/telemetry"
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

// retryAfter is the time between two tries to get a port that another process has, such as the
// collector before this one.
const retryAfter = 10 * time.Second

// Options are an address and the answers there.
type Options struct {
	// Addr is HOST:PORT. Without a host only this machine is answered; a host that is written
	// out is listened on, whichever it is.
	Addr    string
	Version string // of the program
	Read    Read
	// Page makes the handler of all paths except /metrics; nil for none. It gets states without
	// words, and has to allow its own scripts with a Content-Security-Policy.
	Page func(Read) http.Handler
	Log  *slog.Logger // nil for slog.Default
	// Opened is called with the address once it is listened on; nil for nobody.
	Opened func(net.Addr)

	retry <-chan time.Time // of tests
}

// Serve listens until ctx ends, and then returns nil. A port that is in use is tried again, since
// the process that has it may end; the log says so once. The error is that of an address
// that is none.
func Serve(ctx context.Context, opt Options) error {
	addr, err := Address(opt.Addr)
	if err != nil {
		return err
	}
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	retry := opt.retry
	if retry == nil {
		ticker := time.NewTicker(retryAfter)
		defer ticker.Stop()
		retry = ticker.C
	}
	for warned := false; ; {
		var config net.ListenConfig
		listener, err := config.Listen(ctx, "tcp", addr)
		if err == nil {
			warned = false
			err = opt.serve(ctx, listener)
		}
		if !warned && ctx.Err() == nil {
			warned = true
			opt.Log.Warn("kv tier: cannot listen for metrics; trying again until the address is free. Set "+Variable+" to another one", "address", addr, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-retry:
		}
	}
}

// serve answers until ctx ends, or until the listener fails.
func (opt Options) serve(ctx context.Context, listener net.Listener) error {
	opt.Log.Info("kv tier: listening for metrics", "address", listener.Addr().String())
	if at, err := netip.ParseAddrPort(listener.Addr().String()); err == nil && !at.Addr().Unmap().IsLoopback() {
		opt.Log.Warn("kv tier: metrics are shown to everyone who reaches this address", "address", listener.Addr().String())
	}
	if opt.Opened != nil {
		opt.Opened(listener.Addr())
	}
	places := new(bounded)
	server := &http.Server{
		Handler:           opt.handler(),
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
		ended <- server.Serve(listener)
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

func (opt Options) handler() http.Handler {
	read := withoutWords(opt.Read)
	mux := http.NewServeMux()
	mux.Handle("/metrics", Metrics(opt.Version, read))
	if opt.Page != nil {
		mux.Handle("/", guard(opt.Page(read)))
	}
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

// withoutWords removes the text of prompts from states: a collector hands none to this package,
// and a defect there must not put text on the network.
func withoutWords(read Read) Read {
	return func(ctx context.Context) (telemetry.State, error) {
		state, err := read(ctx)
		return state.WithWords(nil), err
	}
}
