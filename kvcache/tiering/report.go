package tiering

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
)

// source makes the reports of this runner. more adds to each the numbers that the page store does not know.
func (s *modelStore) source(m Model, meter *telemetry.Meter, more func(*telemetry.Report)) *telemetry.Source {
	return &telemetry.Source{
		Process: collect.Self(telemetry.EngineOllama),
		Started: time.Now(),
		Model: telemetry.Model{
			Weights:      s.identity[tierenv.KeyWeights],
			Architecture: m.Architecture,
			Fingerprint:  tierenv.Fingerprint(s.identity).String(),
			Namespace:    s.identity[tierenv.KeyNamespace],
			CacheType:    s.identity[tierenv.KeyCacheType],
			PageTokens:   s.config.PageTokens,
			TokenBytes:   s.tokenBytes,
		},
		Meter: meter,
		Fill: func(r *telemetry.Report) {
			s.config.FillReport(r, s.Stats())
			more(r)
		},
	}
}

// push writes a source's reports into a local directory until stop is called, which waits for the
// last one in bounded time: see collect.Push.
func push(root string, source *telemetry.Source, options collect.Options) (stop func()) {
	options.Names = modelnames.Own
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		collect.Push(ctx, root, source, options)
	}()
	return func() {
		cancel()
		<-done
	}
}

// flushPatience bounds the wait of Flush for the report, besides its context.
const flushPatience = 250 * time.Millisecond

// Flush does as [diskstore.Store.Flush]. The process may be killed right afterwards, with all that it
// has counted since its last report, so Flush also waits for one, for a short time.
func (s *modelStore) Flush(ctx context.Context) error {
	select {
	case s.nudge <- nil: // a disk that hangs takes all of the time
	default: // one is asked for already
	}
	err := s.Store.Flush(ctx)
	timer := time.NewTimer(flushPatience)
	defer timer.Stop()
	told := make(chan struct{})
	ask, wait := s.nudge, (<-chan struct{})(nil)
	for {
		select {
		case ask <- told:
			ask, wait = nil, told
		case <-wait:
			return err
		case <-timer.C:
			return err
		case <-ctx.Done():
			return err
		}
	}
}
