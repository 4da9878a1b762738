package diskstore

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// benchPagesEnv is the number of page files that BenchmarkOpenRoot makes.
const benchPagesEnv = "KVTIER_BENCH_PAGES"

// manyPages fills a root with empty page files: listings need only names, sizes and times.
func manyPages(b *testing.B, o Options, n int) {
	b.Helper()
	past := time.Now().Add(-time.Hour)
	for i := range n {
		var key pagefile.Key
		key[0] = byte(i)
		binary.BigEndian.PutUint32(key[4:], uint32(i))
		path := filePath(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Key: key})
		if i < 256 {
			require.NoError(b, os.MkdirAll(filepath.Dir(path), 0o700))
		}
		require.NoError(b, os.WriteFile(path, nil, 0o600))
		if i%64 == 0 { // enough to distinguish them from new files
			require.NoError(b, os.Chtimes(path, past, past.Add(time.Duration(i))))
		}
	}
}

// peakHeap runs fn and returns the growth of the heap meanwhile, in bytes.
func peakHeap(fn func()) uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before, peak := m.HeapAlloc, m.HeapAlloc
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	for {
		select {
		case <-done:
			return peak - before
		case <-time.After(5 * time.Millisecond):
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
		}
	}
}

// BenchmarkOpenRoot opens a root of 100,000 page files, or of KVTIER_BENCH_PAGES, and measures
// the time until pages are served, until one page has been stored, and until all are counted,
// and the growth of the heap until then.
func BenchmarkOpenRoot(b *testing.B) {
	pages := 100_000
	if n, err := strconv.Atoi(os.Getenv(benchPagesEnv)); err == nil {
		pages = n
	}
	o := testOptions(b, func(o *Options) {
		o.FS, o.Local.BudgetBytes = nil, 1<<30
	})
	manyPages(b, o, pages)
	first := open(b, o) // counts
	tokens := prompt(1, 4*testTokens)
	putChain(b, first, tokens)
	require.NoError(b, first.Close())
	var served, stored, counted time.Duration
	var peak uint64
	b.ResetTimer()
	for i := range b.N {
		peak = max(peak, peakHeap(func() {
			start := time.Now()
			s, err := Open(ctx, o)
			require.NoError(b, err)
			require.Len(b, s.Find(ctx, Prompt{Tokens: tokens}).Exact, 4)
			served += time.Since(start)
			require.NoError(b, s.Put(ctx, pageOf(b, s.opt.Fingerprint, 0, prompt(100+i, testTokens))))
			stored += time.Since(start)
			require.NoError(b, s.Flush(ctx))
			counted += time.Since(start)
			require.Equal(b, pages+4+i+1, s.Stats().Local.Pages)
			require.NoError(b, s.Close())
		}))
	}
	n := float64(b.N)
	b.ReportMetric(served.Seconds()*1e3/n, "ms/served")
	b.ReportMetric(stored.Seconds()*1e3/n, "ms/stored")
	b.ReportMetric(counted.Seconds()*1e3/n, "ms/counted")
	b.ReportMetric(float64(peak)/(1<<20), "MiB/peak")
	b.ReportMetric(0, "ns/op")
}
