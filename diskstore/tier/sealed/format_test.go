package sealed

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// stored returns a tier with one file, and the file's sealed name.
func stored(t testing.TB, name pagefile.Name, content []byte) (*tiertest.Map, *sealedTier, pagefile.Name) {
	below := tiertest.NewMap()
	tr := on(below, keyOf(1))
	write(t, tr, name, content, len(content))
	return below, tr, keyOf(1).name(name)
}

// write stores a file in writes of step bytes.
func write(t testing.TB, tr tier.Tier, name pagefile.Name, content []byte, step int) {
	t.Helper()
	up, err := tr.Create(ctx, name)
	require.NoError(t, err)
	for rest := content; len(rest) > 0; rest = rest[min(step, len(rest)):] {
		require.NoError(t, up.Write(ctx, rest[:min(step, len(rest))]))
	}
	_, err = up.Commit(ctx, used)
	require.NoError(t, err)
}

// isDamage requires that a file cannot be read, and that the caller learns which file.
func isDamage(t testing.TB, tr tier.Tier, name pagefile.Name, why string, args ...any) {
	t.Helper()
	blob, err := tr.Open(ctx, name, false)
	require.NoErrorf(t, err, why, args...)
	require.Equal(t, name, blob.Info().Name)
	defer blob.Close()
	err = pagefile.ReadFull(ctx, blob, make([]byte, blob.Size()), 0)
	require.Truef(t, tier.Doubtful(err), why, args...)
	require.ErrorIs(t, err, pagefile.ErrDamaged)
}

// TestEveryDamage: every flipped bit, length and appended byte of a small file.
func TestEveryDamage(t *testing.T) {
	name := tiertest.Page(1)
	below, tr, sealedName := stored(t, name, pattern(40))
	whole := below.Files[sealedName].Content
	set := func(content []byte) { below.Files[sealedName] = tiertest.MapFile{Content: content, Used: used} }
	for i := range 8 * len(whole) {
		content := bytes.Clone(whole)
		content[i/8] ^= 1 << (i % 8)
		set(content)
		isDamage(t, tr, name, "bit %d", i)
	}
	for n := range len(whole) {
		set(whole[:n])
		isDamage(t, tr, name, "%d bytes", n)
	}
	for n := range 20 {
		set(append(bytes.Clone(whole), make([]byte, n+1)...))
		isDamage(t, tr, name, "%d bytes appended", n+1)
	}
	set(whole)
	got, err := readAll(tr, name)
	require.NoError(t, err)
	require.Equal(t, pattern(40), got)
}

// TestDamageOfChunks: chunks that are whole and in a wrong place.
func TestDamageOfChunks(t *testing.T) {
	name := tiertest.Page(1)
	below, tr, sealedName := stored(t, name, pattern(3*chunkBytes))
	whole := below.Files[sealedName].Content
	write(t, tr, name, pattern(3*chunkBytes), chunkBytes)
	again := below.Files[sealedName].Content
	tiertest.Upload(t, tr, tiertest.Tail(1), pattern(3*chunkBytes), used)
	other := below.Files[keyOf(1).name(tiertest.Tail(1))].Content
	former := on(tiertest.NewMap(), keyOf(2))
	tiertest.Upload(t, former, name, pattern(3*chunkBytes), used)
	ofFormer := former.inner.(*tiertest.Map).Files[keyOf(2).name(name)].Content

	header, chunk := whole[:headerBytes], func(i int) []byte { return whole[headerBytes+i*sealedChunk:][:sealedChunk] }
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for why, content := range map[string][]byte{
		"chunks swapped":                join(header, chunk(1), chunk(0), chunk(2)),
		"last chunks swapped":           join(header, chunk(0), chunk(2), chunk(1)),
		"a chunk twice":                 join(header, chunk(0), chunk(0), chunk(2)),
		"the first chunk gone":          join(header, chunk(1), chunk(2)),
		"the last chunk gone":           join(header, chunk(0), chunk(1)),
		"a chunk after the last":        join(whole, chunk(2)),
		"a file after the file":         join(whole, whole),
		"the header of another":         join(again[:headerBytes], chunk(0), chunk(1), chunk(2)),
		"a chunk of another":            join(header, chunk(0), again[headerBytes+sealedChunk:][:sealedChunk], chunk(2)),
		"another file":                  other,
		"a file of another key":         ofFormer,
		"nothing but a header":          header,
		"nothing":                       nil,
		"the content, without sealing":  pattern(3 * chunkBytes),
		"one byte less":                 whole[:len(whole)-1],
		"the last chunk without a byte": join(header, chunk(0), chunk(1), chunk(2)[:tagBytes]),
	} {
		below.Files[sealedName] = tiertest.MapFile{Content: content, Used: used}
		for _, tr := range []tier.Tier{tr, on(below, keyOf(1), keyOf(2))} {
			isDamage(t, tr, name, "%s", why)
		}
	}
	below.Files[sealedName] = tiertest.MapFile{Content: again, Used: used}
	got, err := readAll(tr, name)
	require.NoError(t, err, "an old file of the same name is the same page")
	require.Equal(t, pattern(3*chunkBytes), got)
}

// TestDamagedFilesGo: a file of an impossible length is found, and goes to quarantine as the judged one.
func TestDamagedFilesGo(t *testing.T) {
	name := tiertest.Page(1)
	for _, length := range []int{0, 10, headerBytes + tagBytes - 1, headerBytes + sealedChunk + 3} {
		for _, remove := range []bool{false, true} {
			below, tr, sealedName := stored(t, name, pattern(40))
			below.Files[sealedName] = tiertest.MapFile{Content: make([]byte, length), Used: used}
			judged, err := tier.Stat(ctx, tr, name)
			require.NoError(t, err)
			require.EqualValues(t, length, judged.Physical)
			take := func(judged tier.Info) (bool, error) {
				if remove {
					return tr.Remove(ctx, judged)
				}
				return tr.Quarantine(ctx, judged, "damaged")
			}
			later := judged
			later.Used = used.Add(1)
			taken, _ := take(later)
			require.False(t, taken, "another file")
			require.Len(t, below.Files, 1)
			taken, err = take(judged)
			require.NoError(t, err)
			require.True(t, taken)
			require.Empty(t, below.Files)
		}
	}
	_, tr, _ := stored(t, name, pattern(damagedBytes))
	judged, err := tier.Stat(ctx, tr, name)
	require.NoError(t, err)
	require.EqualValues(t, damagedBytes, judged.Bytes, "a whole file may be as short")
	taken, err := tr.Remove(ctx, judged)
	require.NoError(t, err)
	require.True(t, taken)
}

// watched keeps what is written, and fails once with err.
type watched struct {
	tier.Tier
	pieces [][]byte
	err    error
}

type watchedUpload struct {
	tier.Upload
	w *watched
}

func (w *watched) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	up, err := w.Tier.Create(ctx, name)
	return watchedUpload{up, w}, err
}

func (u watchedUpload) Write(ctx context.Context, p []byte) error {
	u.w.pieces = append(u.w.pieces, p)
	if err := u.w.err; err != nil {
		u.w.err = nil
		return err
	}
	return u.Upload.Write(ctx, p)
}

// TestSizes: files about the sizes of chunks, written at once and in steps, come back as they were.
func TestSizes(t *testing.T) {
	for chunks := range 4 {
		for size := max(0, chunks*chunkBytes-1); size <= chunks*chunkBytes+1; size++ {
			for _, step := range []int{chunkBytes, 40_000, size + 1} {
				below := tiertest.NewMap()
				tr := on(below, keyOf(1))
				write(t, tr, tiertest.Page(1), pattern(size), step)
				info, err := tier.Stat(ctx, tr, tiertest.Page(1))
				require.NoError(t, err)
				require.EqualValues(t, size, info.Bytes)
				require.Equal(t, sealedLen(int64(size)), info.Physical)
				got, err := readAll(tr, tiertest.Page(1))
				require.NoError(t, err)
				require.Equal(t, pattern(size), got)
			}
		}
	}
}

// TestPieces: however much is written at once, the inner upload gets pieces of 1 MiB at most, which it may keep.
func TestPieces(t *testing.T) {
	below := tiertest.NewMap()
	w := &watched{Tier: below}
	tr := on(w, keyOf(1))
	content := pattern(5<<20 + 77)
	write(t, tr, tiertest.Page(1), content, len(content))
	for _, piece := range w.pieces {
		require.LessOrEqual(t, len(piece), 1<<20)
	}
	require.LessOrEqual(t, len(w.pieces), 7, "and not many small ones")
	require.True(t, bytes.Equal(below.Files[keyOf(1).name(tiertest.Page(1))].Content, bytes.Join(w.pieces, nil)))
	got, err := readAll(tr, tiertest.Page(1))
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, got))
}

// TestWriteFails: after a failed write nothing is made visible, and after Seal nothing is written.
func TestWriteFails(t *testing.T) {
	failed := errors.New("full")
	w := &watched{Tier: tiertest.NewMap(), err: failed}
	up, err := on(w, keyOf(1)).Create(ctx, tiertest.Page(1))
	require.NoError(t, err)
	require.ErrorIs(t, up.Write(ctx, pattern(3<<20)), failed)
	require.ErrorIs(t, up.Seal(ctx), failed)
	_, err = up.Commit(ctx, used)
	require.ErrorIs(t, err, failed)
	require.Empty(t, w.Tier.(*tiertest.Map).Files)

	up, err = on(w, keyOf(1)).Create(ctx, tiertest.Page(1))
	require.NoError(t, err)
	require.NoError(t, up.Write(ctx, pattern(10)))
	require.NoError(t, up.Seal(ctx))
	require.Error(t, up.Write(ctx, pattern(10)))
	_, err = up.Commit(ctx, used)
	require.NoError(t, err)
}

// TestLengths: each length of a plain file has one sealed length, and all others are of none.
func TestLengths(t *testing.T) {
	next := int64(0)
	for sealed := int64(-3); sealed < 3*sealedChunk+200; sealed++ {
		n, ok := plainLen(sealed)
		require.Equal(t, sealed == sealedLen(next), ok, "%d", sealed)
		if ok {
			require.Equal(t, next, n)
			next++
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 1<<50).Draw(t, "n")
		got, ok := plainLen(sealedLen(n))
		require.True(t, ok)
		require.Equal(t, n, got)
	})
	for _, sealed := range []int64{math.MinInt64, -1, math.MaxInt64} {
		_, ok := plainLen(sealed)
		require.False(t, ok)
	}
}

// TestRanges: any range of a file is that of the content.
func TestRanges(t *testing.T) {
	content := pattern(pagefile.StepBytes + 5*chunkBytes + 99)
	_, tr, _ := stored(t, tiertest.Page(1), content)
	blob, err := tr.Open(ctx, tiertest.Page(1), false)
	require.NoError(t, err)
	defer blob.Close()
	rapid.Check(t, func(t *rapid.T) {
		edge := rapid.IntRange(0, len(content)/chunkBytes).Draw(t, "chunk") * chunkBytes
		off := min(max(0, edge+rapid.IntRange(-3, chunkBytes).Draw(t, "from")), len(content))
		n := min(rapid.OneOf(rapid.IntRange(0, 5), rapid.IntRange(0, 2*chunkBytes), rapid.IntRange(0, len(content))).Draw(t, "n"), len(content)-off)
		got := make([]byte, n)
		require.NoError(t, blob.ReadAt(ctx, got, int64(off)))
		require.True(t, bytes.Equal(content[off:off+n], got))
		past := make([]byte, len(content)-off+1)
		require.ErrorIs(t, blob.ReadAt(ctx, past, int64(off)), io.ErrUnexpectedEOF)
	})
	require.Error(t, blob.ReadAt(ctx, make([]byte, 1), -1))
	require.Error(t, blob.ReadAt(ctx, nil, math.MaxInt64))
}

// TestReadOpensItsChunks: a read needs no chunk but those of its range.
func TestReadOpensItsChunks(t *testing.T) {
	content := pattern(4 * chunkBytes)
	below, tr, sealedName := stored(t, tiertest.Page(1), content)
	below.Files[sealedName].Content[headerBytes+2*sealedChunk] ^= 1
	blob, err := tr.Open(ctx, tiertest.Page(1), false)
	require.NoError(t, err)
	defer blob.Close()
	got := make([]byte, chunkBytes)
	for _, off := range []int64{0, chunkBytes, 3 * chunkBytes} {
		require.NoError(t, blob.ReadAt(ctx, got, off))
		require.Equal(t, content[off:off+chunkBytes], got)
	}
	require.ErrorIs(t, blob.ReadAt(ctx, got[:2], 2*chunkBytes-1), pagefile.ErrDamaged)
	require.ErrorIs(t, blob.ReadAt(ctx, got[:1], 2*chunkBytes), pagefile.ErrDamaged)
}

// failing is a tier whose files fail at an offset.
type failing struct {
	tier.Tier
	at   int64
	err  error
	open int // files
}

type failingBlob struct {
	tier.Blob
	f *failing
}

func (f *failing) Open(ctx context.Context, name pagefile.Name, anew bool) (tier.Blob, error) {
	blob, err := f.Tier.Open(ctx, name, anew)
	if err == nil {
		f.open++
	}
	return failingBlob{blob, f}, err
}

func (b failingBlob) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off+int64(len(p)) > b.f.at {
		return b.f.err
	}
	return b.Blob.ReadAt(ctx, p, off)
}

func (b failingBlob) Close() {
	b.f.open--
	b.Blob.Close()
}

// TestReadFails: an error of the tier is none of the file, a file that ends early is damaged, and files are closed.
func TestReadFails(t *testing.T) {
	below, _, _ := stored(t, tiertest.Page(1), pattern(3*chunkBytes))
	unreachable := errors.New("unreachable")
	f := &failing{Tier: below, at: 0, err: unreachable}
	tr := on(f, keyOf(1))
	_, err := tr.Open(ctx, tiertest.Page(1), false)
	require.ErrorIs(t, err, unreachable)
	require.Zero(t, f.open)
	_, _, err = tr.Survey(ctx)
	require.ErrorIs(t, err, unreachable)
	require.Zero(t, f.open)
	f.err = io.ErrUnexpectedEOF
	isDamage(t, tr, tiertest.Page(1), "no header")

	f.at = int64(headerBytes + 2*sealedChunk)
	isDamage(t, tr, tiertest.Page(1), "no third chunk")
	f.err = unreachable
	_, err = readAll(tr, tiertest.Page(1))
	require.ErrorIs(t, err, unreachable)
	require.False(t, tier.Doubtful(err))
	require.Zero(t, f.open)
}

// FuzzOpen: whatever an engine gives, a read is an error or the content.
func FuzzOpen(f *testing.F) {
	content := pattern(chunkBytes + 40)
	below, tr, sealedName := stored(f, tiertest.Page(1), content)
	whole := below.Files[sealedName].Content
	for _, seed := range [][]byte{nil, []byte(magic), whole[:headerBytes], whole[:headerBytes+sealedChunk], whole, append(bytes.Clone(whole), 0)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, hostile []byte) {
		below.Files[sealedName] = tiertest.MapFile{Content: hostile, Used: used}
		below.Ledger = hostile
		if got, err := readAll(tr, tiertest.Page(1)); err == nil {
			require.True(t, bytes.Equal(content, got))
		}
		if ledger, err := tr.Account(ctx, nil); err == nil {
			require.Empty(t, ledger)
		}
	})
}

const benchBytes = 8 << 20

// nowhere keeps nothing that is written.
type nowhere struct{ tier.Tier }

type nothing struct{ tier.Upload }

func (nowhere) Create(context.Context, pagefile.Name) (tier.Upload, error) { return nothing{}, nil }

func (nothing) Write(context.Context, []byte) error { return nil }

func (nothing) Commit(_ context.Context, used time.Time) (tier.Committed, error) {
	return tier.Committed{Info: tier.Info{Bytes: benchBytes, Used: used}}, nil
}

func BenchmarkSeal(b *testing.B) {
	content := pattern(benchBytes)
	tr := on(nowhere{}, keyOf(1))
	b.SetBytes(benchBytes)
	for b.Loop() {
		write(b, tr, tiertest.Page(1), content, pagefile.StepBytes)
	}
}

func BenchmarkOpen(b *testing.B) {
	_, tr, _ := stored(b, tiertest.Page(1), pattern(benchBytes))
	got := make([]byte, benchBytes)
	b.SetBytes(benchBytes)
	for b.Loop() {
		blob, err := tr.Open(ctx, tiertest.Page(1), false)
		require.NoError(b, err)
		require.NoError(b, blob.ReadAt(ctx, got, 0))
		blob.Close()
	}
}

func BenchmarkName(b *testing.B) {
	k := keyOf(1)
	for b.Loop() {
		k.name(tiertest.Page(1))
	}
}
