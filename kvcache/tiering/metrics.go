package tiering

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ollama/ollama/version"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/listen"
)

// listenerPatience bounds the wait for the listener when the server ends.
const listenerPatience = 3 * time.Second

// serveTelemetry tells the reports of all runners on the local directory while the server lives, at the
// addresses that settings ask for. Nothing here keeps a server from starting.
func serveTelemetry() (stop func()) {
	config, err := tierenv.FromEnvironment(slog.New(slog.DiscardHandler)) // runners log the same warnings
	if err != nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		listen.Serve(ctx, config.Local, listen.Options{Version: version.Version})
	}()
	hide := exposeMetrics(func(ctx context.Context) (telemetry.State, error) { return collect.Read(ctx, config.Local) })
	return sync.OnceFunc(func() {
		hide()
		cancel()
		steady.Ended(done, listenerPatience) // or it is left behind by a disk that hangs
	})
}

// metricsVariable turns /metrics on at the server's own port. The name is that of upstream's
// open pull request for metrics.
const metricsVariable = "OLLAMA_METRICS"

// exposed answers GET /metrics while a server runs; nil answers as if there were no such path.
// A mux keeps a pattern for ever and panics at a second one, so the handler behind it changes.
var (
	exposed  atomic.Pointer[http.Handler]
	register sync.Once
)

// exposeMetrics answers GET /metrics on the server's own port with the state that read returns,
// until stop, if OLLAMA_METRICS asks for it. The server hands all of its requests to
// http.DefaultServeMux, in every release from v0.16.0 to v0.24.0, and its own routes are the
// pattern / there.
func exposeMetrics(read listen.Read) (stop func()) {
	on, err := env.Bool(metricsVariable)
	if err != nil {
		slog.Warn("kv tier: no metrics", "reason", err)
	}
	if !on {
		return func() {}
	}
	handler := listen.Metrics(version.Version, read)
	exposed.Store(&handler)
	register.Do(func() {
		// HEAD matches, too; other methods go to Ollama's own routes, as without us
		http.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
			if handler := exposed.Load(); handler != nil {
				(*handler).ServeHTTP(w, r)
				return
			}
			http.NotFound(w, r)
		})
	})
	// a server that started meanwhile keeps its own
	return func() { exposed.CompareAndSwap(&handler, nil) }
}
