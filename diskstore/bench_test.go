package diskstore

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// benchPage makes a page of 256 tokens of an eighth of an 8B model: 4 layers of 8 KV heads of
// 128 in f16.
func benchPage(b *testing.B, parent pagefile.Key) *pagefile.Page {
	var sections []pagefile.Section
	for layer := range uint16(4) {
		sections = append(sections, pagefile.Section{Layer: layer, Kind: pagefile.KindK, RowBytes: 2048}, pagefile.Section{Layer: layer, Kind: pagefile.KindV, RowBytes: 2048})
	}
	l := layoutOf(b, sections, 256)
	p := &pagefile.Page{Parent: parent, Tokens: prompt(1, 256), Layout: l, Payload: make([]byte, l.Size())}
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
		p := benchPage(b, s.opt.Fingerprint)
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
		p := benchPage(b, s.opt.Fingerprint)
		if err := s.Put(ctx, p); err != nil {
			b.Fatal(err)
		}
		ref := s.Chain(ctx, p.Tokens, nil)[0]
		buf := make([]byte, p.Layout.Size())
		b.SetBytes(int64(len(buf)))
		b.ResetTimer()
		for range b.N {
			if err := s.Read(ctx, ref, p.Tokens, p.Layout, buf); err != nil {
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
				if len(s.Chain(ctx, tokens, nil)) != pages {
					b.Fatal("chain is not whole")
				}
			}
		})
	}
}
