package paging

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/ggml-paged/pager"
	"github.com/kvtier/kvtier/telemetry"
)

// layer is one of 2 KV heads of 64 in f16. A page of 16 cells has 8 KiB.
var layer = pager.Layer{Cells: 16 * arenaFrames, KVHeads: 2, KeyDim: 64, ValueDim: 64, KeyType: pager.F16, ValueType: pager.F16}

// arenaFrames gives an arena a size that no other mapping has.
const arenaFrames = 9001

const layerPage = 2 * 16 * (2 * 64 * 2) // bytes

func opened(t *testing.T, frames int) *pager.Pager {
	p, err := Open(Config{PageCells: 16, HostBytes: uint64(frames * layerPage), SpillDir: t.TempDir(), SpillBytes: 1 << 30}, nil, nil)
	switch {
	case errors.Is(err, pager.ErrUnsupported):
		t.Skip("built without cgo")
	case errors.Is(err, syscall.EOPNOTSUPP):
		t.Skip("the directory for temporary files is in memory; set TMPDIR")
	}
	require.NoError(t, err)
	t.Cleanup(p.Close)
	_, err = p.AddLayer(layer)
	require.NoError(t, err)
	require.NoError(t, p.Start())
	return p
}

// stream writes and reads more pages than memory has frames.
func stream(t *testing.T, p *pager.Pager) {
	cells := make([]int32, 1024)
	for i := range cells {
		cells[i] = int32(i)
	}
	rows := make([]byte, len(cells)*2*64*2)
	require.NoError(t, p.WriteRows(0, cells, rows, rows))
	require.NoError(t, p.ReadRows(0, cells, rows, rows))
}

func TestReportsCountPagers(t *testing.T) {
	var s telemetry.Source
	before := s.Report()
	p := opened(t, 4)
	stream(t, p)
	stats, report := p.Stats(), s.Report()
	require.NotZero(t, stats.ReadBytes)
	grown := func(name string) float64 { return report.Totals[name] - before.Totals[name] }
	require.EqualValues(t, stats.ReadBytes, grown("ollama_kv_paged_streamed_bytes_total"))
	require.EqualValues(t, stats.Hits, grown("ollama_kv_paged_hits_total"))
	require.EqualValues(t, stats.Misses, grown("ollama_kv_paged_misses_total"))
	require.NotZero(t, stats.WriteBytes)
	require.EqualValues(t, stats.WriteBytes, grown("ollama_kv_paged_spilled_bytes_total"))
	require.EqualValues(t, stats.Evictions, grown("ollama_kv_paged_evictions_total"))
	require.EqualValues(t, stats.Prefetches, grown("ollama_kv_paged_prefetches_total"))
	require.EqualValues(t, stats.PrefetchHits, grown("ollama_kv_paged_prefetch_hits_total"))
	require.EqualValues(t, stats.FramesUsed, report.Gauges["ollama_kv_paged_memory_pages"])
	require.EqualValues(t, stats.SpillBytes, report.Gauges["ollama_kv_paged_spill_bytes"])
	require.InDelta(t, stats.Waited.Seconds(), grown("ollama_kv_paged_stall_seconds_total"), 1e-6)
	requireKnown(t, report)
	require.Equal(t, []telemetry.Memory{{Name: "paged arena", Bytes: int64(stats.FramesUsed) * layerPage, Limit: 4 * layerPage}}, report.Memory)

	// A model that is placed anew has another pager.
	p.Close()
	p.Close()
	require.True(t, p.Closed())
	after := s.Report()
	require.Equal(t, report.Totals, after.Totals)
	require.Empty(t, after.Memory)
	stream(t, opened(t, 4))
	require.Equal(t, 2*stats.ReadBytes, uint64(s.Report().Totals["ollama_kv_paged_streamed_bytes_total"]-before.Totals["ollama_kv_paged_streamed_bytes_total"]))
	require.Len(t, ours.open, 1, "a closed pager is forgotten")
}

func requireKnown(t *testing.T, r telemetry.Report) {
	for kind, all := range map[telemetry.Kind]map[string]float64{telemetry.Counter: r.Totals, telemetry.Gauge: r.Gauges} {
		for series := range all {
			m, known := telemetry.Find(series)
			require.True(t, known, series)
			require.Equal(t, kind, m.Kind, series)
		}
	}
}

func TestReportsCountVideoMemory(t *testing.T) {
	var s telemetry.Source
	opened(t, 4) // attaches
	counted := true
	Devices(func() (pager.DeviceStats, bool) {
		return pager.DeviceStats{Bytes: 5e6, Pages: 7, Hits: 11, Fills: 13, Evictions: 2}, counted
	})
	defer Devices(nil)
	r := s.Report()
	requireKnown(t, r)
	require.Equal(t, 7.0, r.Gauges["ollama_kv_paged_video_pages"])
	require.Equal(t, []float64{11, 13, 2}, []float64{r.Totals["ollama_kv_paged_video_hits_total"], r.Totals["ollama_kv_paged_video_fills_total"], r.Totals["ollama_kv_paged_video_evictions_total"]})
	require.Contains(t, r.Memory, telemetry.Memory{Name: "paged video memory", Bytes: 5e6})
	counted = false
	require.NotContains(t, s.Report().Gauges, "ollama_kv_paged_video_pages", "no device has pages")
}

func TestReportsSayWhyAModelIsNotPaged(t *testing.T) {
	var s telemetry.Source
	require.Nil(t, s.Report().Unpaged)
	Off("it has another form", "use another model")
	defer func() { ours.off = nil }()
	require.Equal(t, &telemetry.Unpaged{Reason: "it has another form", Remedy: "use another model"}, s.Report().Unpaged)
}

// Reports are made at any time, also while a pager is closed.
func TestReportsBesideClosing(t *testing.T) {
	var s telemetry.Source
	var done sync.WaitGroup
	stop := make(chan struct{})
	done.Add(1)
	go func() {
		defer done.Done()
		last := 0.0
		for {
			now := s.Report().Totals["ollama_kv_paged_hits_total"]
			if now < last {
				t.Errorf("hits fell from %v to %v", last, now)
				return
			}
			last = now
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	for range 20 {
		p := opened(t, 4)
		stream(t, p)
		p.Close()
	}
	close(stop)
	done.Wait()
}

// TestTheArenaIsAsLargeAsItsMapping compares the arena with the system's mappings. Kernels
// that keep names of mappings name it; on others the mapping is found by its size.
func TestTheArenaIsAsLargeAsItsMapping(t *testing.T) {
	const frames = arenaFrames
	var s telemetry.Source
	before := len(mappings(t, frames*layerPage))
	p := opened(t, frames)
	stream(t, p)
	report := s.Report()
	require.EqualValues(t, frames*layerPage, report.Memory[0].Limit)
	require.EqualValues(t, 64*layerPage, report.Memory[0].Bytes)
	found := mappings(t, frames*layerPage)
	require.Len(t, found, before+1)
	for _, line := range found {
		if strings.Contains(line, "[anon") {
			require.Contains(t, line, "[anon:kvtier: paged arena]")
		}
	}
	p.Close()
	require.Len(t, mappings(t, frames*layerPage), before)
}

// mappings are the lines of /proc/self/maps of mappings with a number of bytes.
func mappings(t *testing.T, bytes uint64) (lines []string) {
	f, err := os.Open("/proc/self/maps")
	require.NoError(t, err)
	defer f.Close()
	for scan := bufio.NewScanner(f); scan.Scan(); {
		var begin, end uint64
		_, err := fmt.Sscanf(scan.Text(), "%x-%x", &begin, &end)
		require.NoError(t, err)
		if end-begin == bytes {
			lines = append(lines, scan.Text())
		}
	}
	return lines
}
