package tiering

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry/collect"
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
		if err := collect.Serve(ctx, config.Local, collect.Options{Logger: slog.Default()}); err != nil {
			slog.Debug("kv tier: reports of runners are not collected", "reason", err)
		}
	}()
	return sync.OnceFunc(func() {
		cancel()
		timer := time.NewTimer(collectorPatience)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C: // left behind by a disk that hangs
		}
	})
}
