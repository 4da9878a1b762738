package diskstore

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/internal/trial"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

func withAuto(o *Options) { o.Compress = CompressAuto }

// f16Chain are n pages with Gaussian f16 rows, which shrink.
func f16Chain(t testing.TB, n int) (pages []*pagefile.Page) {
	l := layoutOf(t, []pagefile.Section{{Kind: pagefile.KindK, RowBytes: 16384}, {Kind: pagefile.KindV, RowBytes: 16384}}, testTokens)
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

// decided waits for the verdict.
func decided(t testing.TB, s *Store) { require.NoError(t, s.trying.Wait(ctx)) }

// isRaw reports whether a stored page has no encoded section.
func isRaw(t testing.TB, s *Store, p *pagefile.Page) bool {
	t.Helper()
	h, err := s.headerOf(ctx, s.disk, s.pageName(p.Key()))
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

func trialFile(o Options) string {
	return filepath.Join(o.Local.Root, storetest.VersionDir, "trial.json")
}

// The first full page is measured, once for all stores of the directory, and pages after the verdict
// follow it. All rows come back either way.
func TestCompressAuto(t *testing.T) {
	o := testOptions(t, withAuto)
	pages := f16Chain(t, 4)
	s := open(t, o)
	require.NoError(t, s.Put(ctx, pages[0]))
	require.True(t, isRaw(t, s, pages[0]), "nothing is known yet")
	decided(t, s)
	content, err := os.ReadFile(trialFile(o))
	require.NoError(t, err)
	r, ok := trial.Read(content).Find(o.Fingerprint, runtime.GOMAXPROCS(0), time.Now())
	require.True(t, ok)
	require.Positive(t, r.Raw)
	require.Positive(t, r.Compressed)
	require.Greater(t, r.Ratio, 1.0)
	require.NoError(t, s.Put(ctx, pages[1]))
	require.Equal(t, !r.Pays(), isRaw(t, s, pages[1]))
	require.Empty(t, temps(t, o))

	for i, speeds := range [][2]float64{{1, 2}, {2, 1}} {
		r.Raw, r.Compressed = speeds[0], speeds[1]
		content, err := trial.Record{}.With(o.Fingerprint, r)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(trialFile(o), content, 0o600))
		again := open(t, o)
		before := len(filesIn(t, o.Local.Root, ".kvp"))
		require.NoError(t, again.Put(ctx, pages[1]), "stored already")
		require.NoError(t, again.Put(ctx, pages[2+i]))
		decided(t, again)
		require.Len(t, filesIn(t, o.Local.Root, ".kvp"), before+1)
		require.Equal(t, i == 0, again.encoder() != nil)
	}
	requireRows(t, open(t, o), pages)
}

// temps are the temporary files of pages.
func temps(t testing.TB, o Options) []string { return filesIn(t, o.Local.Root, ".tmp") }

// A disk that fails a trial at any point leaves pages raw, and no file behind. Pages are stored
// nevertheless.
func TestCompressAutoOnABadDisk(t *testing.T) {
	scratch := regexp.MustCompile(`/tmp/[^/]*$`)
	pages := f16Chain(t, 2)
	for name, rule := range map[string]vfs.Rule{
		"read":    {Ops: []vfs.Op{vfs.OpRead}, Path: scratch, Err: syscall.EIO},
		"open":    {Ops: []vfs.Op{vfs.OpOpen}, Path: scratch, Err: syscall.EIO},
		"uncache": {Ops: []vfs.Op{vfs.OpUncache}, Path: scratch, Err: syscall.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			inj := vfs.Inject(quickFS)
			o := testOptions(t, withAuto, withFS(inj))
			s := open(t, o)
			inj.Add(rule)
			require.NoError(t, s.Put(ctx, pages[0]))
			decided(t, s)
			require.NoError(t, s.Put(ctx, pages[1]))
			require.True(t, isRaw(t, s, pages[1]))
			require.Empty(t, temps(t, o))
			require.NoFileExists(t, trialFile(o))
			inj.Reset()
			requireRows(t, s, pages)
		})
	}
}

// A store closes during a trial, and the next one of the directory works.
func TestCloseDuringATrial(t *testing.T) {
	inj := vfs.Inject(quickFS)
	o := testOptions(t, withAuto, withFS(inj))
	s, err := Open(ctx, o)
	require.NoError(t, err)
	gate := vfs.NewGate()
	t.Cleanup(gate.Open)
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpUncache}, Path: regexp.MustCompile(`/tmp/`), Gate: gate})
	pages := f16Chain(t, 2)
	require.NoError(t, s.Put(ctx, pages[0]))
	<-gate.Entered()
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	<-s.life.Ctx.Done()
	gate.Open()
	require.NoError(t, <-closed)
	require.Empty(t, temps(t, o))
	inj.Reset()
	next := open(t, o)
	require.NoError(t, next.Put(ctx, pages[1]))
	decided(t, next)
	requireRows(t, next, pages)
}

// A budget without room for a trial, a daily limit, and a damaged record leave pages raw or measure
// again, and lose nothing.
func TestCompressAutoWithoutRoom(t *testing.T) {
	pages := f16Chain(t, 2)
	for name, edit := range map[string]func(*Options){
		"small budget": func(o *Options) { o.Local.BudgetBytes = 1 << 20 },
		"daily limit":  func(o *Options) { o.WritePerDay = 1 << 20 },
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t, withAuto, edit)
			s := open(t, o)
			require.NoError(t, s.Put(ctx, pages[0]))
			decided(t, s)
			require.NoError(t, s.Put(ctx, pages[1]))
			require.True(t, isRaw(t, s, pages[1]))
			require.NoFileExists(t, trialFile(o))
			requireRows(t, s, pages)
		})
	}
	o := testOptions(t, withAuto)
	s := open(t, o)
	require.NoError(t, os.WriteFile(trialFile(o), []byte(`{"x":[1`), 0o600))
	require.NoError(t, s.Put(ctx, pages[0]))
	decided(t, s)
	content, err := os.ReadFile(trialFile(o))
	require.NoError(t, err)
	require.Len(t, trial.Read(content), 1)
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
