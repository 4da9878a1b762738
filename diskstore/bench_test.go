package diskstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

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

// BenchmarkPutNames stores each page twice, with the sync of its name and without, in turns, and
// reports the medians in ms. Its directory must be on a disk.
func BenchmarkPutNames(b *testing.B) {
	for _, size := range []struct {
		name   string
		layers uint16
		tokens int
	}{{"tail of 64 KiB", 1, 16}, {"page of 1 MiB", 1, 256}, {"page of 4 MiB", 4, 256}, {"page of 32 MiB", 32, 256}} {
		b.Run(size.name, func(b *testing.B) {
			var stores []*Store
			for _, names := range nameModes {
				stores = append(stores, open(b, testOptions(b, names.set, func(o *Options) {
					o.FS, o.PageTokens, o.Local.BudgetBytes = nil, 256, 4<<30
				})))
			}
			p := benchPage(b, stores[0].opt.Fingerprint, size.layers, size.tokens)
			took := make([][]float64, len(stores))
			b.ResetTimer()
			for i := range b.N {
				p.Tokens[0] = int32(i)
				for turn := range stores {
					which := (i + turn) % len(stores)
					start := time.Now()
					if err := stores[which].Put(ctx, p); err != nil {
						b.Fatal(err)
					}
					took[which] = append(took[which], time.Since(start).Seconds()*1000)
				}
			}
			for i, names := range nameModes {
				slices.Sort(took[i])
				b.ReportMetric(took[i][len(took[i])/2], strings.ReplaceAll(names.name, " ", "-")+"-ms")
			}
		})
	}
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
