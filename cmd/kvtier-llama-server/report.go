//go:build unix

package main

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/internal/version"
	"github.com/kvtier/kvtier/llamatier"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/station"
	"github.com/kvtier/kvtier/telemetry/why"
)

// reportTimeout bounds the time for which the last report, and giving up the collector, hold up
// the end.
const reportTimeout = 700 * time.Millisecond

// reports sends the reports of a daemon. Daemons of one directory also collect the reports, one of
// them for all.
type reports struct {
	stop   context.CancelFunc
	pushed chan struct{} // closed after the last report
	served chan struct{} // closed when this daemon has stopped collecting
}

// startReports begins to report a tier and its store.
func (s *server) startReports(config tierenv.Config, identity map[string]string, meter *telemetry.Meter, recents *why.Recents, tier *llamatier.Tier, store *diskstore.Store, tokenBytes int64) {
	source := &telemetry.Source{
		Process: collect.Self(telemetry.EngineLlama),
		Started: time.Now(),
		Model: telemetry.Model{
			Weights:     identity[tierenv.KeyWeights],
			Fingerprint: tierenv.Fingerprint(identity).String(),
			Namespace:   identity[tierenv.KeyNamespace],
			CacheType:   identity[tierenv.KeyCacheType],
			PageTokens:  config.PageTokens,
			TokenBytes:  tokenBytes,
		},
		Meter: meter,
		Fill: func(r *telemetry.Report) {
			config.FillReport(r, store.Stats())
			r.Slots = append(r.Slots, tier.Slots()...)
			r.Busters = recents.Busters()
			r.Memory = append(r.Memory, telemetry.Memory{Name: "recent prompts", Bytes: recents.Bytes()})
		},
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &reports{stop: stop, pushed: make(chan struct{}), served: make(chan struct{})}
	serving, stopServing := context.WithCancel(context.Background())
	go func() {
		defer close(r.pushed)
		defer stopServing() // the last report may be to this process itself
		collect.Push(ctx, config.Local, source, collect.Options{Logger: s.log})
	}()
	go func() {
		defer close(r.served)
		names := func() modelnames.Names { return modelnames.Read(modelnames.Dir()) }
		station.Keep(serving, config.Local, station.Options{Version: version.String(), Logger: s.log, Names: names})
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
