//go:build unix

package front

import (
	"context"
	"path/filepath"
	"time"

	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/internal/version"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/station"
)

// reportTimeout bounds the time for which the last report, and giving up the collector, hold up
// the end.
const reportTimeout = 700 * time.Millisecond

// reports writes the reports of a daemon. Daemons of one directory also collect the reports, one of
// them for all.
type reports struct {
	stop   context.CancelFunc
	pushed chan struct{} // closed after the last report
	served chan struct{} // closed when this daemon has stopped collecting
}

// startReports begins to report a model. fill adds to each report.
func (s *server) startReports(config tierenv.Config, model telemetry.Model, fill func(*telemetry.Report)) {
	source := &telemetry.Source{
		Process: collect.Self(telemetry.EngineLlama), Started: time.Now(), Model: model, Meter: s.meter, Fill: fill,
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &reports{stop: stop, pushed: make(chan struct{}), served: make(chan struct{})}
	serving, stopServing := context.WithCancel(context.Background())
	go func() {
		defer close(r.pushed)
		defer stopServing() // the last report is added to the totals
		collect.Push(ctx, config.Local, source, collect.Options{Logger: s.log})
	}()
	go func() {
		defer close(r.served)
		names := func() modelnames.Names { return modelnames.Read(modelnames.Dir()) }
		hints := func() []string { return install.Here().Updates(filepath.Dir(s.real)) }
		station.Keep(serving, config.Local, station.Options{Version: version.String(), Logger: s.log, Names: names, Hints: hints})
	}()
	s.reports.Store(r)
}

// end sends the last report, and gives the collector up, in bounded time: a disk may hang.
func (r *reports) end() {
	r.stop()
	late := time.NewTimer(reportTimeout)
	defer late.Stop()
	for _, done := range []chan struct{}{r.pushed, r.served} {
		select {
		case <-done:
		case <-late.C:
			return
		}
	}
}
