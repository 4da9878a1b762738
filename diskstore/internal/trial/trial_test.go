package trial

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const pageTokens = 16

var fingerprint = pagefile.Key{1}

// f16Page is a page of n sections with Gaussian numbers in f16, of 2 KiB a token.
func f16Page(t *testing.T, n int) *pagefile.Page {
	var sections []pagefile.Section
	for i := range n {
		sections = append(sections, pagefile.Section{Layer: uint16(i), RowBytes: 2 << 10})
	}
	l, err := pagefile.NewLayout(sections, pageTokens)
	require.NoError(t, err)
	p := &pagefile.Page{Parent: fingerprint, Tokens: make([]int32, pageTokens), Layout: l, Payload: make([]byte, l.Size())}
	rng := rand.New(rand.NewPCG(1, 2))
	for at := 0; at < len(p.Payload); at += 2 {
		binary.LittleEndian.PutUint16(p.Payload[at:], float16.Fromfloat32(float32(rng.NormFloat64())).Bits())
	}
	p.ClearGaps()
	return p
}

// disk is a disk in memory with a clock: reading n bytes takes n × perByte. A compressed page takes
// decoding more.
type disk struct {
	perByte, decoding time.Duration

	mu      sync.Mutex
	now     time.Time
	written int64
	files   int
	fails   func(op string) error
}

type file struct {
	d          *disk
	content    []byte
	compressed bool
}

func (d *disk) clock() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now
}

func (d *disk) do(op string) error {
	if d.fails == nil {
		return nil
	}
	return d.fails(op)
}

func (d *disk) Write(_ context.Context, e *pagefile.Encoded) (File, error) {
	if err := d.do("write"); err != nil {
		return nil, err
	}
	f := &file{d: d, compressed: !e.Header.Raw()}
	err := e.WriteTo(func(p []byte) error { f.content = append(f.content, p...); return nil })
	d.files++
	d.written += int64(len(f.content))
	return f, err
}

func (f *file) Cold(context.Context) (tier.Blob, error) {
	if err := f.d.do("open"); err != nil {
		return nil, err
	}
	return &blob{file: f}, nil
}

func (f *file) Remove() { f.d.files-- }

type blob struct {
	*file
	once sync.Once
}

func (b *blob) Info() tier.Info { return tier.Info{Bytes: int64(len(b.content))} }
func (b *blob) Size() int64     { return int64(len(b.content)) }
func (b *blob) Close()          {}

func (b *blob) ReadAt(_ context.Context, p []byte, off int64) error {
	if err := b.d.do("read"); err != nil {
		return err
	}
	copy(p, b.content[off:])
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	b.d.now = b.d.now.Add(time.Duration(len(p)) * b.d.perByte)
	if b.compressed {
		b.once.Do(func() { b.d.now = b.d.now.Add(b.d.decoding) })
	}
	return nil
}

func run(t *testing.T, d *disk, p *pagefile.Page) (Result, error) {
	t.Helper()
	c, err := pagefile.NewCodec()
	require.NoError(t, err)
	d.now = time.Unix(1e9, 0)
	return Run(t.Context(), d, p, Options{
		Fingerprint: fingerprint, PageTokens: pageTokens, Codec: c, Now: d.clock,
		Quiet: func(ctx context.Context) error { return errors.Join(ctx.Err(), d.do("quiet")) },
	})
}

// A slow disk returns fewer bytes sooner; a quick one does not make up for decoding.
func TestVerdicts(t *testing.T) {
	p := f16Page(t, 8)
	for name, c := range map[string]struct {
		perByte, decoding time.Duration
		pays              bool
	}{
		"slow disk":                {perByte: 10, pays: true},
		"quick disk, slow decoder": {perByte: 1, decoding: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			d := &disk{perByte: c.perByte, decoding: c.decoding}
			r, err := run(t, d, p)
			require.NoError(t, err)
			require.Equal(t, c.pays, r.Pays(), "%+v", r)
			require.InDelta(t, 1.15, r.Ratio, 0.06)
			require.Positive(t, r.Processors)
			require.InDelta(t, 1/float64(c.perByte), r.Raw, 0.05/float64(c.perByte), "GB per second")
			require.Zero(t, d.files, "files are left")
			require.LessOrEqual(t, d.written, Bytes(p))
		})
	}
}

// Rows that do not shrink are not written.
func TestNothingToGain(t *testing.T) {
	p := f16Page(t, 2)
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range p.Payload {
		p.Payload[i] = byte(rng.Uint32())
	}
	p.ClearGaps()
	d := &disk{perByte: 10}
	r, err := run(t, d, p)
	require.NoError(t, err)
	require.False(t, r.Pays())
	require.Zero(t, d.written)
}

// No failure leaves a file.
func TestFailures(t *testing.T) {
	p := f16Page(t, 2)
	for _, op := range []string{"write", "open", "read", "quiet"} {
		for nth := 1; nth < 4; nth++ {
			seen, broken := 0, errors.New("broken "+op)
			d := &disk{perByte: 10, fails: func(now string) error {
				if now == op {
					seen++
				}
				if now == op && seen >= nth {
					return broken
				}
				return nil
			}}
			if op == "read" {
				d.fails = func(now string) error {
					if now == op {
						return broken
					}
					return nil
				}
			}
			_, err := run(t, d, p)
			require.ErrorIs(t, err, broken)
			require.Zero(t, d.files, "%s %d", op, nth)
		}
	}
}

// Page takes a part of a large page, and bytes of its own.
func TestPage(t *testing.T) {
	small := f16Page(t, 3)
	own, err := Page(small)
	require.NoError(t, err)
	require.Equal(t, small.Payload, own.Payload)
	clear(small.Payload)
	require.NotEqual(t, small.Payload, own.Payload)

	large := f16Page(t, rowsLeast/(pageTokens*2<<10)*2)
	own, err = Page(large)
	require.NoError(t, err)
	require.Equal(t, rowsLeast, own.Layout.Size())
	require.Equal(t, large.Payload[:rowsLeast], own.Payload)
	require.Less(t, Bytes(own), int64(128<<20))
	require.Less(t, Bytes(small), int64(32<<20))
}

func TestRecord(t *testing.T) {
	now := time.Unix(1e9, 0).UTC()
	r := Result{Raw: 1, Compressed: 2, Ratio: 1.1, Processors: 4, When: now}
	content, err := Record{}.With(fingerprint, r)
	require.NoError(t, err)
	got, ok := Read(content).Find(fingerprint, 4, now.Add(time.Hour))
	require.True(t, ok)
	require.Equal(t, r, got)
	for name, find := range map[string]func() (Result, bool){
		"another fingerprint":      func() (Result, bool) { return Read(content).Find(pagefile.Key{2}, 4, now) },
		"other processors":         func() (Result, bool) { return Read(content).Find(fingerprint, 8, now) },
		"old":                      func() (Result, bool) { return Read(content).Find(fingerprint, 4, now.Add(31*24*time.Hour)) },
		"the clock was set back":   func() (Result, bool) { return Read(content).Find(fingerprint, 4, now.Add(-48*time.Hour)) },
		"nothing":                  func() (Result, bool) { return Read(nil).Find(fingerprint, 4, now) },
		"null":                     func() (Result, bool) { return Read([]byte("null")).Find(fingerprint, 4, now) },
		"garbage":                  func() (Result, bool) { return Read([]byte(`{"a": [`)).Find(fingerprint, 4, now) },
		"another kind of content":  func() (Result, bool) { return Read([]byte(`[1,2]`)).Find(fingerprint, 4, now) },
		"numbers that do not fit":  func() (Result, bool) { return Read([]byte(`{"01":{"ratio":1e999}}`)).Find(fingerprint, 4, now) },
		"text in place of a speed": func() (Result, bool) { return Read([]byte(`{"01":{"ratio":"x"}}`)).Find(fingerprint, 4, now) },
	} {
		_, ok := find()
		require.False(t, ok, name)
	}

	var last pagefile.Key
	for i := range 3 * keptMost {
		r.When = now.Add(time.Duration(i) * time.Second)
		last = pagefile.Key{byte(i), byte(i >> 8), 7}
		content, err = Read(content).With(last, r)
		require.NoError(t, err)
		require.LessOrEqual(t, len(content), BytesMax)
	}
	require.Len(t, Read(content), keptMost)
	_, ok = Read(content).Find(last, 4, r.When)
	require.True(t, ok, "the latest one is kept")
}
