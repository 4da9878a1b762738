//go:build unix

package front

import (
	"context"
	"path/filepath"
	"time"

	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/internal/version"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/listen"
)

// reportTimeout bounds the time for which the last report, and the listener, hold up the end.
const reportTimeout = 700 * time.Millisecond

// reports writes the reports of a daemon, and tells those of its directory at the address of metrics.
type reports struct {
	stop  context.CancelFunc
	ended chan struct{} // closed after the last report, and the end of the listener
}

// startReports begins to report a model. fill adds to each report.
func (s *server) startReports(config tierenv.Config, model telemetry.Model, fill func(*telemetry.Report)) {
	source := &telemetry.Source{
		Process: collect.Self(telemetry.EngineLlama), Started: time.Now(), Model: model, Meter: s.meter, Fill: fill,
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &reports{stop: stop, ended: make(chan struct{})}
	pushed := run(func() error {
		collect.Push(ctx, config.Local, source, collect.Options{Logger: s.log, Names: modelnames.Own})
		return nil
	})
	go func() {
		defer close(r.ended)
		hints := func() []string { return install.Here().Updates(filepath.Dir(s.real)) }
		listen.Serve(ctx, config.Local, listen.Options{Version: version.String(), Log: s.log, Hints: hints})
		<-pushed.done
	}()
	s.reports.Store(r)
}

// end sends the last report, and closes the listener, in bounded time: a disk may hang.
func (r *reports) end() {
	r.stop()
	steady.Ended(r.ended, reportTimeout)
}
