package tiering

import (
	"context"
	"os"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/internal/proc"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
)

// thisProcess identifies this process. Without /proc its boot and its start are not known.
func thisProcess() telemetry.Process {
	p := telemetry.Process{PID: os.Getpid(), Engine: telemetry.EngineOllama}
	p.Boot, _ = proc.Boot()
	if stat, err := proc.Read(p.PID); err == nil {
		p.Start = stat.Start
	}
	return p
}

// source makes the reports of this runner. more adds to each the numbers that the page store does not know.
func (s *modelStore) source(m Model, meter *telemetry.Meter, more func(*telemetry.Report)) *telemetry.Source {
	return &telemetry.Source{
		Process: thisProcess(),
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
			s.fill(r)
			more(r)
		},
	}
}

// report sends reports to the collector of the local directory, until the store is closed.
func (s *modelStore) report(source *telemetry.Source) {
	ctx, cancel := context.WithCancel(context.Background())
	s.nudge, s.reported = make(chan struct{}, 1), make(chan struct{})
	s.lastReport = func() {
		cancel()
		<-s.reported // in bounded time: see collect.Push
	}
	go func() {
		defer close(s.reported)
		collect.Push(ctx, s.config.Local, source, collect.Options{Logger: s.log, Nudge: s.nudge})
	}()
}

// Flush does as [diskstore.Store.Flush]. The process may be killed afterwards, so a report is sent
// soon.
func (s *modelStore) Flush(ctx context.Context) error {
	select {
	case s.nudge <- struct{}{}:
	default: // one is asked for already
	}
	return s.Store.Flush(ctx)
}

// fill adds the tiers and the store's counters.
func (s *modelStore) fill(r *telemetry.Report) {
	st := s.Stats()
	s.fillTiers(r, &st)
	s.fillMoves(r, &st)
	for series, n := range map[string]uint64{
		"ollama_kv_prefetched_pages_total":                                    st.AheadPages,
		"ollama_kv_prefetched_bytes_total":                                    st.AheadBytes,
		"ollama_kv_prefetched_used_pages_total":                               st.AheadUsed,
		"ollama_kv_encoded_raw_bytes_total":                                   st.RawBytes,
		"ollama_kv_encoded_bytes_total":                                       st.WroteBytes,
		"ollama_kv_damaged_pages_total":                                       st.Damaged,
		"ollama_kv_write_capped_pages_total":                                  st.WriteCaps,
		telemetry.Series("ollama_kv_store_errors_total", "operation", "put"):  st.PutErrors,
		telemetry.Series("ollama_kv_store_errors_total", "operation", "tier"): st.TierErrors,
	} {
		r.Totals[series] = float64(n)
	}
	r.Memory = append(r.Memory, telemetry.Memory{Name: "pages being read", Bytes: st.WholeBytes})
	if s.config.RAMBytes > 0 {
		r.Memory = append(r.Memory, telemetry.Memory{Name: "pages in memory", Bytes: st.RAM.Bytes, Limit: st.RAMLimit})
	}
}

func (s *modelStore) fillTiers(r *telemetry.Report, st *diskstore.Stats) {
	tierOf := func(name, root string, of diskstore.TierStats) telemetry.Tier {
		return telemetry.Tier{Name: name, Root: root, Pages: of.Pages, Tails: of.Tails, Bytes: of.Bytes, Down: of.Down}
	}
	if s.config.RAMBytes > 0 {
		ram := tierOf(telemetry.PlaceRAM, "", st.RAM)
		ram.Booked, ram.Budget = st.RAM.Bytes, st.RAMLimit
		r.Tiers = append(r.Tiers, ram)
	}
	local := tierOf(telemetry.PlaceLocal, s.config.Local, st.Local)
	local.Booked, local.Budget = st.LocalBooked, s.config.LocalBytes
	local.WrittenToday, local.WriteCap, local.Quarantined = st.LocalWritten, st.WriteCap, int(st.LocalQuarantined)
	r.Tiers = append(r.Tiers, local)
	if s.config.Remote != "" {
		remote := tierOf(telemetry.PlaceRemote, s.config.Remote, st.Remote)
		remote.Booked, remote.Budget = st.RemoteBooked, s.config.RemoteBytes
		remote.WrittenToday, remote.Quarantined = st.RemoteWritten, int(st.RemoteQuarantined)
		r.Tiers = append(r.Tiers, remote)
	}
}

// fillMoves adds the moves between tiers. Those into slots are counted by the wrapper.
func (s *modelStore) fillMoves(r *telemetry.Report, st *diskstore.Stats) {
	move := func(from, to string, n uint64) {
		r.Totals[telemetry.Series("ollama_kv_page_moves_total", "from", from, "to", to)] = float64(n)
	}
	move(telemetry.PlaceSlot, telemetry.PlaceLocal, st.Puts)
	move(telemetry.PlaceLocal, telemetry.PlaceNone, st.LocalEvicted)
	if s.config.RAMBytes > 0 {
		move(telemetry.PlaceSlot, telemetry.PlaceRAM, st.RAMStored)
		move(telemetry.PlaceLocal, telemetry.PlaceRAM, st.RAMFromLocal)
		move(telemetry.PlaceRAM, telemetry.PlaceNone, st.RAMEvicted)
	}
	if s.config.Remote == "" {
		return
	}
	move(telemetry.PlaceLocal, telemetry.PlaceRemote, st.Demoted)
	move(telemetry.PlaceRemote, telemetry.PlaceLocal, st.Promoted)
	move(telemetry.PlaceRemote, telemetry.PlaceNone, st.RemoteEvicted)
	if s.config.RAMBytes > 0 {
		move(telemetry.PlaceRemote, telemetry.PlaceRAM, st.RAMFromRemote)
	}
}
