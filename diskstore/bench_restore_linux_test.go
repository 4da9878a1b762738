package diskstore

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Sizes of BenchmarkRestoreEncodings: pages of some layers with 8 K/V heads of 128 in f16.
const (
	benchPages  = 6
	benchLayers = 4
	benchTokens = 256
	benchAtOnce = 3 // pages that an engine reads at a time
)

// BenchmarkRestoreEncodings reads the same pages raw and compressed, in turns, with an empty page
// cache and with a full one. It reports GB of decoded rows per second (medians of b.N rounds), and the
// same per second of processor time; its directory must be on a disk. Use -benchtime 20x.
func BenchmarkRestoreEncodings(b *testing.B) {
	for _, kind := range []string{"f16", "bf16"} {
		b.Run(kind, func(b *testing.B) {
			var variants []*restoreVariant
			for _, compress := range []bool{false, true} {
				variants = append(variants, newRestoreVariant(b, kind, compress))
			}
			b.ResetTimer()
			for i := range b.N {
				for turn := range variants {
					v := variants[(i+turn)%len(variants)]
					for at, cache := range []string{"empty", "full"} {
						v.restore(b, cache == "empty", at)
					}
				}
			}
			b.ReportMetric(variants[1].ratio, "ratio")
			for _, v := range variants {
				for at, cache := range []string{"empty", "full"} {
					b.ReportMetric(v.rate(v.wall[at]), v.name+"-"+cache+"-GB/s")
				}
				b.ReportMetric(v.rate(v.busy[1]), v.name+"-full-GB/cpu-s")
			}
		})
	}
}

// restoreVariant is a store with pages in one way to store them.
type restoreVariant struct {
	name  string
	s     *Store
	pages []*pagefile.Page
	refs  []Ref
	ratio float64
	wall  [2][]float64 // seconds of restores, with an empty page cache and with a full one
	busy  [2][]float64 // processor seconds
}

func newRestoreVariant(b *testing.B, kind string, compress bool) *restoreVariant {
	v := &restoreVariant{name: map[bool]string{false: "raw", true: "compressed"}[compress]}
	v.s = open(b, testOptions(b, func(o *Options) {
		o.FS, o.PageTokens, o.Compress, o.Local.BudgetBytes = nil, benchTokens, compress, 1<<30
	}))
	parent, stored, rows := v.s.opt.Fingerprint, int64(0), 0
	var tokens []int32
	for i := range benchPages {
		p := numbersPage(b, kind, parent, i)
		noError(b, v.s.Put(ctx, p))
		parent, tokens, v.pages = p.Key(), append(tokens, p.Tokens...), append(v.pages, p)
		rows += len(p.Payload)
	}
	v.refs = v.s.Find(ctx, Prompt{Tokens: tokens}).Exact
	for _, ref := range v.refs {
		stored += ref.Bytes
	}
	if len(v.refs) != benchPages {
		b.Fatal("chain is not whole")
	}
	v.ratio = float64(rows) / float64(stored)
	want := map[bool]pagefile.Encoding{false: encoding.Raw, true: encoding.Split}[compress]
	if got := headerAt(b, v.s, v.refs[0]).Sections[0].Encoding; got != want {
		b.Fatalf("pages are %v, want %v", got, want)
	}
	return v
}

// numbersPage makes a page whose channels have scales of their own.
func numbersPage(b *testing.B, kind string, parent pagefile.Key, number int) *pagefile.Page {
	p := benchPage(b, parent, benchLayers, benchTokens)
	p.Start, p.Tokens = uint32(number*benchTokens), prompt(number, benchTokens)
	rng := rand.New(rand.NewPCG(uint64(number), 1))
	var scale [1024]float64
	for c := range scale {
		scale[c] = math.Exp(rng.NormFloat64())
	}
	for at := 0; at < len(p.Payload); at += 2 {
		bits := math.Float32bits(float32(rng.NormFloat64() * scale[at/2%len(scale)]))
		number := uint16(bits >> 16)
		if kind == "f16" { // of normal numbers, rounded towards zero
			number = uint16(bits>>16&0x8000) | uint16(int(bits>>13&0x3ffff)-(127-15)<<10)&0x7fff
		}
		binary.LittleEndian.PutUint16(p.Payload[at:], number)
	}
	return p
}

// restore reads all pages, several at a time, and copies their rows as an engine does.
func (v *restoreVariant) restore(b *testing.B, empty bool, at int) {
	if empty {
		for _, ref := range v.refs {
			dropCached(b, filePath(v.s.opt.Local.Root, ref.name(v.s.pages)))
		}
	}
	began, busy := time.Now(), processorTime(b)
	var g errgroup.Group
	g.SetLimit(benchAtOnce)
	for i, ref := range v.refs {
		p := v.pages[i]
		g.Go(func() error {
			return v.s.Read(ctx, ref, p.Tokens, p.Layout, Into{Use: func(section int, rows []byte) error {
				copy(p.Layout.Rows(p.Payload, section), rows)
				return nil
			}})

		})
	}
	noError(b, g.Wait())
	v.wall[at] = append(v.wall[at], time.Since(began).Seconds())
	v.busy[at] = append(v.busy[at], (processorTime(b) - busy).Seconds())
}

// rate is the median of GB per second.
func (v *restoreVariant) rate(seconds []float64) float64 {
	slices.Sort(seconds)
	return float64(benchPages*len(v.pages[0].Payload)) / seconds[len(seconds)/2] / 1e9
}

func noError(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// dropCached takes a file out of the page cache.
func dropCached(b *testing.B, path string) {
	f, err := os.Open(path)
	noError(b, err)
	defer f.Close()
	noError(b, f.Sync())
	noError(b, os.NewSyscallError("fadvise", unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)))
}

// processorTime is the time that this process has computed.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	noError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
