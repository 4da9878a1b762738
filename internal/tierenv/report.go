package tierenv

import (
	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/telemetry"
)

// FillReport adds the tiers and the counters of a store to the report of the process that opened it.
func (c Config) FillReport(r *telemetry.Report, st diskstore.Stats) {
	c.fillTiers(r, &st)
	c.fillMoves(r, &st)
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
	if c.RAMBytes > 0 {
		r.Memory = append(r.Memory, telemetry.Memory{Name: "pages in memory", Bytes: st.RAM.Bytes, Limit: st.RAMLimit})
	}
}

func (c Config) fillTiers(r *telemetry.Report, st *diskstore.Stats) {
	tierOf := func(name, root string, of diskstore.TierStats) telemetry.Tier {
		return telemetry.Tier{Name: name, Root: root, Pages: of.Pages, Tails: of.Tails, Bytes: of.Bytes, Down: of.Down}
	}
	if c.RAMBytes > 0 {
		ram := tierOf(telemetry.PlaceRAM, "", st.RAM)
		ram.Booked, ram.Budget = st.RAM.Bytes, st.RAMLimit
		r.Tiers = append(r.Tiers, ram)
	}
	local := tierOf(telemetry.PlaceLocal, c.Local, st.Local)
	local.Booked, local.Budget = st.LocalBooked, c.LocalBytes
	local.WrittenToday, local.WriteCap, local.Quarantined = st.LocalWritten, st.WriteCap, int(st.LocalQuarantined)
	r.Tiers = append(r.Tiers, local)
	if c.Remote != "" {
		remote := tierOf(telemetry.PlaceRemote, c.Remote, st.Remote)
		remote.Booked, remote.Budget = st.RemoteBooked, c.RemoteBytes
		remote.WrittenToday, remote.Quarantined = st.RemoteWritten, int(st.RemoteQuarantined)
		r.Tiers = append(r.Tiers, remote)
	}
}

// fillMoves adds the moves between tiers. Those into slots are counted where slots are.
func (c Config) fillMoves(r *telemetry.Report, st *diskstore.Stats) {
	move := func(from, to string, n uint64) {
		r.Totals[telemetry.Series("ollama_kv_page_moves_total", "from", from, "to", to)] = float64(n)
	}
	move(telemetry.PlaceSlot, telemetry.PlaceLocal, st.Puts)
	move(telemetry.PlaceLocal, telemetry.PlaceNone, st.LocalEvicted)
	if c.RAMBytes > 0 {
		move(telemetry.PlaceSlot, telemetry.PlaceRAM, st.RAMStored)
		move(telemetry.PlaceLocal, telemetry.PlaceRAM, st.RAMFromLocal)
		move(telemetry.PlaceRAM, telemetry.PlaceNone, st.RAMEvicted)
	}
	if c.Remote == "" {
		return
	}
	move(telemetry.PlaceLocal, telemetry.PlaceRemote, st.Demoted)
	move(telemetry.PlaceRemote, telemetry.PlaceLocal, st.Promoted)
	move(telemetry.PlaceRemote, telemetry.PlaceNone, st.RemoteEvicted)
	if c.RAMBytes > 0 {
		move(telemetry.PlaceRemote, telemetry.PlaceRAM, st.RAMFromRemote)
	}
}

// Allocation lists the tiers for a log line: the directory and the budget of each, and the number of
// tokens that fit uncompressed, where a token's number of bytes is known.
func (c Config) Allocation(tokenBytes int64) []any {
	var attrs []any
	tier := func(name string, bytes int64) {
		if bytes == 0 {
			attrs = append(attrs, name+"_budget", "all but 5% of the disk")
			return
		}
		attrs = append(attrs, name+"_budget", format.HumanBytes(bytes))
		if tokenBytes > 0 {
			attrs = append(attrs, name+"_tokens", bytes/tokenBytes)
		}
	}
	attrs = append(attrs, "local", c.Local)
	tier("local", c.LocalBytes)
	if c.RAMBytes > 0 {
		tier("ram", c.RAMBytes)
	}
	if c.Remote != "" {
		attrs = append(attrs, "remote", c.Remote)
		tier("remote", c.RemoteBytes)
	}
	return attrs
}
