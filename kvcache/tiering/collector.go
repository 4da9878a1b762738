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
	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry/listen"
	"github.com/kvtier/kvtier/telemetry/station"
)

// collectorPatience bounds the wait for the collector when the server ends: it saves its totals.
const collectorPatience = 3 * time.Second

// serveTelemetry collects the reports of all runners on the local directory while the server lives,
// unless another server on the directory does. A missing directory is waited for: the first model
// makes it. Nothing here keeps a server from starting.
func serveTelemetry() (stop func()) {
	config, err := tierenv.FromEnvironment(slog.New(slog.DiscardHandler)) // runners log the same warnings
	if err != nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		station.Keep(ctx, config.Local, station.Options{Version: version.Version, Logger: slog.Default(), Names: names})
	}()
	hide := exposeMetrics(station.Reader(config.Local))
	return sync.OnceFunc(func() {
		hide()
		cancel()
		steady.Ended(done, collectorPatience) // or it is left behind by a disk that hangs
	})
}

// names reads the names of models from Ollama's store.
func names() modelnames.Names { return modelnames.Read(modelnames.Dir()) }

// metricsVariable turns /metrics on at the server's port. Its name is from upstream's pull request.
const metricsVariable = "OLLAMA_METRICS"

// exposed answers GET /metrics while a server runs; nil answers as if there were no such path.
// A mux keeps a pattern for ever and panics at a second one, so the handler behind it changes.
var (
	exposed  atomic.Pointer[http.Handler]
	register sync.Once
)

// exposeMetrics answers GET /metrics on the server's own port with the state that read returns, until
// stop, if OLLAMA_METRICS asks for it. The server hands all of its requests to http.DefaultServeMux, in
// every release from v0.16.0 to v0.24.0, and its own routes are the pattern / there.
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
