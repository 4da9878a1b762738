package diskstore

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// benchPage makes a page of some layers of an 8B model, which has 32: 8 KV heads of 128 in f16.
func benchPage(b *testing.B, parent pagefile.Key, layers uint16, tokens int) *pagefile.Page {
	var sections []pagefile.Section
	for layer := range layers {
		sections = append(sections, pagefile.Section{Layer: layer, Kind: pagefile.KindK, RowBytes: 2048}, pagefile.Section{Layer: layer, Kind: pagefile.KindV, RowBytes: 2048})
	}
	l := layoutOf(b, sections, tokens)
	p := &pagefile.Page{Parent: parent, Tokens: prompt(1, tokens), Layout: l, Payload: make([]byte, l.Size())}
	// Every second byte, like an f16's exponent, takes few values.
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range p.Payload {
		p.Payload[i] = byte(rng.Uint32())
		if i%2 == 1 {
			p.Payload[i] = 0x38 + p.Payload[i]&7
		}
	}
	return p
}

func eachEncoding(b *testing.B, run func(b *testing.B, s *Store)) {
	for _, compress := range []bool{false, true} {
		name := map[bool]string{false: "raw", true: "zstd"}[compress]
		b.Run(name, func(b *testing.B) {
			run(b, open(b, testOptions(b, func(o *Options) {
				o.FS, o.PageTokens, o.Compress, o.Local.BudgetBytes = nil, 256, compress, 1<<30
			})))
		})
	}
}

func BenchmarkPut(b *testing.B) {
	eachEncoding(b, func(b *testing.B, s *Store) {
		p := benchPage(b, s.opt.Fingerprint, 4, 256)
		b.SetBytes(int64(len(p.Payload)))
		for i := range b.N {
			p.Tokens[0] = int32(i)
			if err := s.Put(ctx, p); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkRead(b *testing.B) {
	eachEncoding(b, func(b *testing.B, s *Store) {
		p := benchPage(b, s.opt.Fingerprint, 4, 256)
		if err := s.Put(ctx, p); err != nil {
			b.Fatal(err)
		}
		ref := s.Find(ctx, Prompt{Tokens: p.Tokens}).Exact[0]
		buf := make([]byte, p.Layout.Size())
		b.SetBytes(int64(len(buf)))
		b.ResetTimer()
		for range b.N {
			if err := s.Read(ctx, ref, p.Tokens, p.Layout, Into{Rows: buf}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkChain(b *testing.B) {
	for _, pages := range []int{8, 64} {
		b.Run(fmt.Sprintf("%d pages", pages), func(b *testing.B) {
			s := open(b, testOptions(b))
			tokens := prompt(1, pages*testTokens)
			putChain(b, s, tokens)
			b.ResetTimer()
			for range b.N {
				if len(s.Find(ctx, Prompt{Tokens: tokens}).Exact) != pages {
					b.Fatal("chain is not whole")
				}
			}
		})
	}
}

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
