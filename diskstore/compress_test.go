package diskstore

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

func withAuto(o *Options) { o.Compress = CompressAuto }

// f16Chain are n pages with Gaussian f16 rows, which shrink.
func f16Chain(t testing.TB, n int) (pages []*pagefile.Page) {
	l := layoutOf(t, []pagefile.Section{{Kind: pagefile.KindK, RowBytes: 8192}}, testTokens)
	parent, rng := testFingerprint(1), rand.New(rand.NewPCG(1, 2))
	for i := range n {
		p := &pagefile.Page{Parent: parent, Start: uint32(i * testTokens), Tokens: prompt(i+1, testTokens), Layout: l, Payload: make([]byte, l.Size())}
		for s := range l.Len() {
			rows := l.Rows(p.Payload, s)
			for at := 0; at < len(rows); at += 2 {
				binary.LittleEndian.PutUint16(rows[at:], float16.Fromfloat32(float32(rng.NormFloat64())).Bits())
			}
		}
		pages, parent = append(pages, p), p.Key()
	}
	return pages
}

func tokensOf(pages []*pagefile.Page) (tokens []int32) {
	for _, p := range pages {
		tokens = append(tokens, p.Tokens...)
	}
	return tokens
}

// isRaw reports whether a stored page has no encoded section.
func isRaw(t testing.TB, s *Store, p *pagefile.Page) bool {
	t.Helper()
	h, err := tier.ReadHeader(ctx, s.disk, s.pages.Page(p.Key()))
	require.NoError(t, err)
	return h.Raw()
}

func requireRows(t testing.TB, s *Store, pages []*pagefile.Page) {
	t.Helper()
	refs := s.Chain(ctx, tokensOf(pages), nil)
	require.Len(t, refs, len(pages))
	for i, p := range pages {
		buf := make([]byte, p.Layout.Size())
		require.NoError(t, s.Read(ctx, refs[i], p.Tokens, p.Layout, buf))
		require.Equal(t, p.Payload, buf)
	}
}

// storeReads has a store read pages, raw ones and compressed ones each in a time.
func storeReads(t testing.TB, s *Store, pages []*pagefile.Page, raw, compressed time.Duration) {
	t.Helper()
	refs := s.Chain(ctx, tokensOf(pages), nil)
	require.Len(t, refs, len(pages))
	for i, p := range pages {
		took := compressed
		if isRaw(t, s, p) {
			took = raw
		}
		at, calls := time.Now(), 0
		s.now = func() time.Time { // the reading begins, and ends
			calls++
			return at.Add(time.Duration(calls-1) * took)
		}
		buf := make([]byte, p.Layout.Size())
		require.NoError(t, s.Read(ctx, refs[i], p.Tokens, p.Layout, buf))
		require.Equal(t, p.Payload, buf)
		s.now = time.Now
	}
}

// share is the part of pages that are raw.
func rawShare(t testing.TB, s *Store, pages []*pagefile.Page) float64 {
	n := 0
	for _, p := range pages {
		if isRaw(t, s, p) {
			n++
		}
	}
	return float64(n) / float64(len(pages))
}

// Pages take turns between both forms until their reads have told which one comes back sooner. Later
// pages follow the verdict, as do those of the next process. All rows come back.
func TestCompressAuto(t *testing.T) {
	for name, c := range map[string]struct {
		raw, compressed time.Duration
		pays            bool
	}{
		"slow disk":  {20 * time.Millisecond, 15 * time.Millisecond, true},
		"quick disk": {20 * time.Millisecond, 25 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			lines := new(syncWriter)
			o := testOptions(t, withAuto, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(lines, nil)) })
			pages := f16Chain(t, 160)
			s, err := Open(ctx, o)
			require.NoError(t, err)
			for _, p := range pages[:64] {
				require.NoError(t, s.Put(ctx, p))
			}
			require.InDelta(t, 0.5, rawShare(t, s, pages[:64]), 0.2)
			storeReads(t, s, pages[:64], c.raw, c.compressed)
			require.Equal(t, c.pays, lines.count("new kv pages are compressed") == 1)
			require.Equal(t, !c.pays, lines.count("new kv pages stay uncompressed") == 1)
			for _, p := range pages[64:112] {
				require.NoError(t, s.Put(ctx, p))
			}
			require.NoError(t, s.Close())

			next := open(t, o)
			for _, p := range pages[112:] {
				require.NoError(t, next.Put(ctx, p))
			}
			for _, after := range [][]*pagefile.Page{pages[64:112], pages[112:]} {
				require.Equal(t, c.pays, rawShare(t, next, after) < 0.3)
				require.Equal(t, !c.pays, rawShare(t, next, after) > 0.7)
			}
			requireRows(t, next, pages)
		})
	}
}

// A verdict that could not be written is written later.
func TestVerdictIsRecordedInTheEnd(t *testing.T) {
	inj := vfs.Inject(quickFS)
	o := testOptions(t, withAuto, withFS(inj))
	s := open(t, o)
	pages := f16Chain(t, 64)
	for _, p := range pages {
		require.NoError(t, s.Put(ctx, p))
	}
	storeReads(t, s, pages, 20*time.Millisecond, 15*time.Millisecond)
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRename}, Path: regexp.MustCompile(`trial\.json$`), Err: syscall.ENOSPC})
	require.NoError(t, s.Flush(ctx))
	require.True(t, s.trial.Changed())
	inj.Reset()
	require.NoError(t, s.Flush(ctx))
	require.False(t, s.trial.Changed())
	require.FileExists(t, filepath.Join(o.Local.Root, storetest.VersionDir, "trial.json"))
}

// Pages that do not become smaller are soon stored without a trial.
func TestCompressAutoWithoutGain(t *testing.T) {
	s := open(t, testOptions(t, withAuto))
	pages, rng := f16Chain(t, 60), rand.New(rand.NewPCG(3, 4))
	for _, p := range pages {
		for i := range p.Payload {
			p.Payload[i] = byte(rng.Uint32())
		}
		require.NoError(t, s.Put(ctx, p))
	}
	require.Equal(t, 1.0, rawShare(t, s, pages))
	encoded := 0
	for b := range 256 {
		if s.encoder(pagefile.Key{byte(b)}) != nil {
			encoded++
		}
	}
	require.Equal(t, 16, encoded)
}

// A record that cannot be read or written costs nothing but the verdict.
func TestCompressAutoOnABadDisk(t *testing.T) {
	pages := f16Chain(t, 64)
	record := regexp.MustCompile(`trial\.json$`)
	for name, rule := range map[string]vfs.Rule{
		"read":   {Ops: []vfs.Op{vfs.OpRead, vfs.OpOpen}, Path: record, Err: syscall.EIO},
		"rename": {Ops: []vfs.Op{vfs.OpRename}, Path: record, Err: syscall.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			inj := vfs.Inject(quickFS)
			o := testOptions(t, withAuto, withFS(inj))
			inj.Add(rule)
			s, err := Open(ctx, o)
			require.NoError(t, err)
			for _, p := range pages {
				require.NoError(t, s.Put(ctx, p))
			}
			storeReads(t, s, pages, 20*time.Millisecond, 15*time.Millisecond)
			require.NoError(t, s.Close())
			require.Empty(t, filesIn(t, o.Local.Root, ".tmp"))
			requireRows(t, open(t, o), pages)
		})
	}
	for name, make := range map[string]func(path string) error{
		"garbage":   func(path string) error { return os.WriteFile(path, []byte(`{"x":[1`), 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
		"large":     func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("1"), 1<<20), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t, withAuto)
			require.NoError(t, open(t, o).Close())
			require.NoError(t, make(filepath.Join(o.Local.Root, storetest.VersionDir, "trial.json")))
			s := open(t, o)
			require.NoError(t, s.Put(ctx, pages[0]))
			requireRows(t, s, pages[:1])
		})
	}
}

func TestCompressions(t *testing.T) {
	for value, want := range map[string]Compression{"": CompressNever, "0": CompressNever, "false": CompressNever, "1": CompressAlways, "true": CompressAlways, "auto": CompressAuto} {
		got, err := ParseCompression(value)
		require.NoError(t, err)
		require.Equal(t, want, got, value)
	}
	_, err := ParseCompression("zstd")
	require.ErrorIs(t, err, ErrOptions)
	for _, c := range []Compression{CompressNever, CompressAlways, CompressAuto} {
		again, err := ParseCompression(c.String())
		require.NoError(t, err)
		require.Equal(t, c, again)
	}
}
