package tiering

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/ollama/ollama/version"

	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/internal/tierenv"
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
