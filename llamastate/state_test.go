package llamastate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// file is a file in memory, zero where nothing was written.
type file struct{ b []byte }

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	if grow := int(off) + len(p) - len(f.b); grow > 0 {
		f.b = append(f.b, make([]byte, grow)...)
	}
	return copy(f.b[off:], p), nil
}

// opened opens a file that is understood.
func opened(t testing.TB, shape *Shape, b []byte) *File {
	t.Helper()
	f, err := shape.Open(bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	return f
}

// pageOf reads the rows of n tokens of a file from one on.
func pageOf(t testing.TB, f *File, sections []pagefile.Section, start, n int) (pagefile.Layout, []byte) {
	t.Helper()
	layout, err := pagefile.NewLayout(sections, n)
	require.NoError(t, err)
	page := make([]byte, layout.Size())
	require.NoError(t, f.ReadRows(layout, start, page))
	return layout, page
}

// built begins a file of tokens, with zeros in the place of rows.
func built(t testing.TB, shape *Shape, tokens []int32, window int) (*file, *Builder) {
	t.Helper()
	out := &file{}
	build, err := shape.Build(out, tokens, nil, window)
	require.NoError(t, err)
	_, err = out.WriteAt(nil, build.Size())
	require.NoError(t, err)
	return out, build
}

// aShape draws the shape of a server.
func aShape(t *rapid.T) Shape {
	s := Shape{Version: rapid.Uint32Range(2, 4).Draw(t, "version")}
	families := [][]Kind{{Full}, {Full, Window}, {Full, Recurrent}, {Full, Window, Recurrent}, {Recurrent}}
	ext, mla := rapid.Bool().Draw(t, "two-dimensional"), rapid.Bool().Draw(t, "K holds V")
	streams := rapid.Uint32Range(1, 4).Draw(t, "streams")
	transposed := rapid.Bool().Draw(t, "transposed")
	for _, kind := range rapid.SampledFrom(families).Draw(t, "family") {
		c := Cache{Kind: kind, Layers: rapid.Uint32Range(1, 3).Draw(t, "layers")}
		row := rapid.Int64Range(1, 5).Draw(t, "row") * 6
		if kind == Recurrent {
			for range c.Layers {
				c.Tensors[0] = append(c.Tensors[0], Tensor{Type: 0, Row: row})
				c.Tensors[1] = append(c.Tensors[1], Tensor{Type: 0, Row: row * rapid.SampledFrom([]int64{0, 1, 7}).Draw(t, "state")})
			}
			for i := range c.Tensors[1] {
				c.Tensors[1][i] = c.Tensors[1][0]
			}
			c.Layers += 2 // layers with attention
			s.Caches = append(s.Caches, c)
			continue
		}
		c.Streams, c.Ext, c.Transposed = streams, ext, transposed && !mla
		if s.Version >= 4 {
			c.Rotations = [2]uint32{64, 0}
		}
		for range c.Layers {
			c.Tensors[0] = append(c.Tensors[0], Tensor{Type: 8, Row: row})
			if v := (Tensor{Type: 1, Row: row * 2}); !mla {
				if c.Transposed {
					v.Element = 2
				}
				c.Tensors[1] = append(c.Tensors[1], v)
			}
		}
		s.Caches = append(s.Caches, c)
	}
	return s
}

// aWindow draws the positions that a window keeps; 0 without one.
func aWindow(t *rapid.T, shape Shape) int {
	if !shape.Has(Window) {
		return 0
	}
	return rapid.IntRange(1, 80).Draw(t, "window")
}

// aServer draws a server that has computed n tokens.
func aServer(t *rapid.T, shape Shape, n, window int) (*server, *rand.Rand) {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	s := newServer(rng, shape, someTokens(rng, n), window)
	if rapid.Bool().Draw(t, "checkpoints") {
		s.checkpoints = someCheckpoints(rng, n)
	}
	return s, rng
}

func someTokens(rng *rand.Rand, n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = rng.Int32N(150_000)
	}
	return tokens
}

// TestFilesBecomePagesAndFiles saves a sequence with cells in any order, learns the shape from
// one token, reads the sequence page by page, builds a file of the pages that are left after a
// cut, and restores that.
func TestFilesBecomePagesAndFiles(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape := aShape(rt)
		window, size := aWindow(rt, shape), rapid.IntRange(1, 20).Draw(rt, "page")
		n := window + rapid.IntRange(1, 70).Draw(rt, "tokens")
		saved, rng := aServer(rt, shape, n, window)
		tokens := saved.tokens

		one := newServer(rng, shape, tokens[:1], window).save(rapid.Bool().Draw(rt, "packed"))
		learned, err := Learn(bytes.NewReader(one), int64(len(one)))
		require.NoError(t, err)
		require.True(t, learned.Equal(&shape), "%+v is not %+v", *learned, shape)

		b := saved.save(rapid.Bool().Draw(rt, "packed"))
		f := opened(t, learned, b)
		require.Equal(t, tokens, f.Tokens)
		require.Equal(t, min(window, n), f.WindowRows())

		upto := n
		if !shape.HasEnd() {
			upto = rapid.IntRange(1, n).Draw(rt, "cut")
		}
		out, build := built(t, learned, tokens[:upto], window)
		for _, i := range rand.Perm((upto + size - 1) / size) {
			start, end := i*size, min(upto, (i+1)*size)
			sections := learned.Sections()
			if end == n {
				sections = learned.EndSections(f.WindowRows())
			}
			if len(sections) == 0 {
				continue // a page of a model whose layers are all recurrent
			}
			layout, page := pageOf(t, f, sections, start, end-start)
			require.NoError(t, build.WriteRows(layout, start, layout.Tokens(), page))
		}
		require.Len(t, out.b, int(build.Size()))
		got := restore(t, shape, out.b, window)
		require.Equal(t, tokens[:upto], got.tokens)
		requireRows(t, saved, got, upto, window)

		less := rapid.IntRange(1, upto).Draw(rt, "less")
		first := &file{}
		begin, err := learned.Build(first, tokens[:less], nil, 0)
		if shape.HasEnd() {
			require.True(t, err != nil || begin.CopyRows(bytes.NewReader(out.b), build) != nil)
			return
		}
		require.NoError(t, err)
		require.NoError(t, begin.CopyRows(bytes.NewReader(out.b), build))
		requireRows(t, saved, restore(t, shape, first.b, 0), less, 0)
		require.ErrorIs(t, begin.CopyRows(bytes.NewReader(nil), build), io.ErrUnexpectedEOF)
		if less < upto {
			require.Error(t, build.CopyRows(bytes.NewReader(first.b), begin))
		}
	})
}

// requireRows requires that two servers have the same rows for the next token.
func requireRows(t testing.TB, want, got *server, n, window int) {
	t.Helper()
	for i, c := range want.shape.Caches {
		for half := range c.Tensors {
			for layer := range c.Tensors[half] {
				w, g := want.caches[i].rows[half][layer], got.caches[i].rows[half][layer]
				first := 0
				if c.Kind == Window {
					first = max(0, n-window)
				} else if c.Kind == Recurrent {
					first = n - 1
				}
				require.Len(t, g, n-first)
				for pos := first; pos < n; pos++ {
					require.Equal(t, w[int32(pos)], g[int32(pos)], "cache %d, tensor %d of %d, position %d", i, layer, half, pos)
				}
			}
		}
	}
}

// anyShape is a shape for tests that need no other.
func anyShape() Shape {
	s := Shape{Version: 3}
	for _, kind := range []Kind{Full, Window} {
		s.Caches = append(s.Caches, Cache{Kind: kind, Streams: 2, Layers: 2, Tensors: [2][]Tensor{
			{{Type: 1, Row: 12}, {Type: 1, Row: 12}},
			{{Type: 1, Row: 8}, {Type: 1, Row: 8}},
		}})
	}
	return s
}

// TestEveryChangedHeadIsRefused: each truncation, each byte too many, and each change of a
// byte that is neither token, nor row, nor a number that llama-server ignores.
func TestEveryChangedHeadIsRefused(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	shape := anyShape()
	s := newServer(rng, shape, someTokens(rng, 9), 5)
	b := s.save(true)
	for n := range b {
		_, err := shape.Open(bytes.NewReader(b), int64(n))
		require.ErrorIs(t, err, ErrUnknown, "%d of %d bytes", n, len(b))
	}
	_, err := shape.Open(bytes.NewReader(append(bytes.Clone(b), 0)), int64(len(b)+1))
	require.ErrorIs(t, err, ErrUnknown)

	// Bytes that differ when every bit of the content does are content.
	other := newServer(rng, shape, someTokens(rng, 9), 5)
	for i := range s.tokens {
		other.tokens[i] = s.tokens[i] ^ 0x7f7f7f7f
	}
	for i := range s.caches {
		o := &other.caches[i]
		o.pos, o.stream = s.caches[i].pos, s.caches[i].stream
		for half := range o.rows {
			for layer, rows := range s.caches[i].rows[half] {
				for pos, row := range rows {
					for at := range row {
						o.rows[half][layer][pos][at] = ^row[at]
					}
				}
			}
		}
	}
	content := other.save(true)
	heads := 0
	for at := range b {
		if b[at] != content[at] {
			continue
		}
		changed := bytes.Clone(b)
		changed[at] ^= 0x10
		heads++
		_, err := shape.Open(bytes.NewReader(changed), int64(len(b)))
		require.ErrorIs(t, err, ErrUnknown, "byte %d", at)
	}
	require.Greater(t, heads, 200)
}

// TestCheckpointsAreAccountedFor, to the last byte of their section, and not read: each truncation is
// refused, each byte too many, each other version, and sizes and numbers that cannot be.
func TestCheckpointsAreAccountedFor(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 1))
	hybrid := anyShape()
	hybrid.Caches[1] = Cache{Kind: Recurrent, Layers: 4, Tensors: [2][]Tensor{{{Row: 8}, {Row: 8}}, {{Row: 4}, {Row: 4}}}}
	for _, shape := range []Shape{anyShape(), hybrid} {
		s := newServer(rng, shape, someTokens(rng, 9), 5)
		caches := len(s.save(true))
		open := func(b []byte) (*File, error) { return shape.Open(bytes.NewReader(b), int64(len(b))) }
		for _, s.checkpoints = range [][]checkpoint{{}, {{9, 0, 8, [3][]byte{{1, 2}, nil, {3}}}, {1, 0, 0, [3][]byte{}}}} {
			b := s.save(true)
			f, err := open(b)
			require.NoError(t, err)
			require.Equal(t, int64(len(b)-caches), f.Checkpoints)
			learned, err := Learn(bytes.NewReader(b), int64(len(b)))
			require.NoError(t, err)
			require.True(t, learned.Equal(&shape))
			for n := caches + 1; n < len(b); n++ {
				_, err := open(b[:n])
				require.ErrorIs(t, err, ErrUnknown, "%d of %d bytes", n, len(b))
			}
			_, err = open(append(bytes.Clone(b), 0))
			require.ErrorIs(t, err, ErrUnknown)
		}
		b := s.save(true)[:caches+12]
		for name, tail := range map[string][]uint32{
			"no checkpoint, and more":  {0x504b4353, 1, 0, 7},
			"of another kind":          {0x504b4354, 1, 0},
			"of version 0":             {0x504b4353, 0, 0},
			"of version 2":             {0x504b4353, 2, 0},
			"too many":                 {0x504b4353, 1, 1 << 31},
			"of no token":              {0x504b4353, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
			"of too many tokens":       {0x504b4353, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0},
			"before the first token":   {0x504b4353, 1, 1, 1, 0, 1 << 31, 0, 0, 0, 0, 0, 0, 0},
			"that end before they are": {0x504b4353, 1, 1, 1, 0, 3, 2, 0, 0, 0, 0, 0, 0},
			"with a state too large":   {0x504b4353, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0},
			"with a state of no size":  {0x504b4353, 1, 1, 1, 0, 0, 0, 0xffffffff, 0xffffffff, 0, 0, 0, 0},
		} {
			w := &words{}
			w.Write(b[:caches])
			w.u32(tail...)
			_, err := open(w.Bytes())
			require.ErrorIs(t, err, ErrUnknown, name)
		}
	}
}

// TestPositionsAreAccountedFor: a cache that has lost a position, or has one twice, is refused.
func TestPositionsAreAccountedFor(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	shape := anyShape()
	open := func(change func(s *server)) error {
		s := newServer(rng, shape, someTokens(rng, 9), 5)
		change(s)
		b := s.save(true)
		_, err := shape.Open(bytes.NewReader(b), int64(len(b)))
		return err
	}
	require.NoError(t, open(func(*server) {}))
	for i := range shape.Caches {
		m := func(s *server) *memory { return &s.caches[i] }
		require.ErrorIs(t, open(func(s *server) {
			last := slices.Index(m(s).pos, 8)
			m(s).pos = slices.Delete(m(s).pos, last, last+1)
		}), ErrUnknown, "cache %d", i)
		require.ErrorIs(t, open(func(s *server) { m(s).pos[0] = m(s).pos[1] }), ErrUnknown, "cache %d", i)
		require.ErrorIs(t, open(func(s *server) { m(s).pos = append(m(s).pos, m(s).pos[0]) }), ErrUnknown, "cache %d", i)
	}
	require.ErrorIs(t, open(func(s *server) { s.tokens[3] = -7 }), ErrUnknown)
}

// TestTextBeforeMedia: of a slot with an image, the tokens before it can be read, and no end.
func TestTextBeforeMedia(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	shape := Shape{Version: 2, Caches: anyShape().Caches[:1]}
	s := newServer(rng, shape, someTokens(rng, 20), 0)
	for i := 7; i < 12; i++ {
		s.tokens[i] = -1
	}
	w := &words{}
	w.u32(0x67677371, 2, uint32(20+4+4), 0xffffffff, 1, 20)
	for _, tok := range s.tokens {
		w.u32(uint32(tok))
	}
	w.u32(1, 7)
	w.u32(5)
	w.Write([]byte("image\x00\x00\x00"))
	s.saveCache(w, &shape.Caches[0], &s.caches[0])
	f := opened(t, &shape, w.Bytes())
	require.Equal(t, s.tokens[:7], f.Tokens)
	require.True(t, f.Cut)
	require.False(t, f.End())
	layout, page := pageOf(t, f, shape.Sections(), 0, 7)
	for i, rows := range s.caches[0].rows[0] {
		for pos := range int32(7) {
			require.Equal(t, rows[pos], layout.Rows(page, i)[pos*12:][:12])
		}
	}
	require.Error(t, f.ReadRows(layout, 1, page), "a token of the image")
}

// broken fails reads and writes that reach a byte.
type broken struct {
	file
	at int64
}

var errBroken = errors.New("broken")

func (b *broken) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > b.at {
		return 0, errBroken
	}
	return bytes.NewReader(b.b).ReadAt(p, off)
}

func (b *broken) WriteAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > b.at {
		return 0, errBroken
	}
	return b.file.WriteAt(p, off)
}

// TestErrorsOfTheFileAreReturned: a read or a write that fails at any byte is an error, and a
// read error is not taken for an unknown file.
func TestErrorsOfTheFileAreReturned(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 1))
	shape := anyShape()
	shape.Caches[0].Transposed = true
	for i := range shape.Caches[0].Tensors[1] {
		shape.Caches[0].Tensors[1][i].Element = 2
	}
	tokens := someTokens(rng, 30)
	b := newServer(rng, shape, tokens, 5).save(false)
	layout, err := pagefile.NewLayout(shape.EndSections(5), 30)
	require.NoError(t, err)
	page := make([]byte, layout.Size())
	_, sound := built(t, &shape, tokens, 5)
	size := sound.Size()
	for at := int64(len(b)); at >= 0; at-- {
		r := &broken{file{b}, at}
		f, err := shape.Open(r, int64(len(b)))
		if err == nil {
			err = f.ReadRows(layout, 0, page)
		}
		if at == int64(len(b)) {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, errBroken, "byte %d", at)
		}
		if _, err := Learn(r, int64(len(b))); at < 100 {
			require.ErrorIs(t, err, errBroken)
		}

		w := &broken{at: at * size / int64(len(b))}
		build, err := shape.Build(w, tokens, nil, 5)
		if err == nil {
			err = build.WriteRows(layout, 0, layout.Tokens(), page)
		}
		if w.at < size {
			require.ErrorIs(t, err, errBroken, "byte %d", w.at)
		} else {
			require.NoError(t, err)
		}
	}
}

func ExampleShape() {
	// A server saved one token: its files have this shape.
	one, size := oneToken()
	shape, err := Learn(one, size)
	fmt.Println(shape.Caches[0].Kind, err)
	// Output: full <nil>
}

func oneToken() (io.ReaderAt, int64) {
	rng := rand.New(rand.NewPCG(5, 1))
	b := newServer(rng, Shape{Version: 2, Caches: anyShape().Caches[:1]}, []int32{1}, 0).save(true)
	return bytes.NewReader(b), int64(len(b))
}

// FuzzOpen: no file panics, takes much memory, or is read and built differently.
func FuzzOpen(f *testing.F) {
	rng := rand.New(rand.NewPCG(6, 1))
	for _, s := range []Shape{anyShape(), {Version: 2, Caches: anyShape().Caches[:1]}} {
		f.Add(newServer(rng, s, someTokens(rng, 9), 5).save(true))
		f.Add(newServer(rng, s, someTokens(rng, 1), 5).save(false))
		end := newServer(rng, s, someTokens(rng, 9), 5)
		end.checkpoints = []checkpoint{{3, 0, 2, [3][]byte{{1}, nil, {2, 3}}}, {9, 4, 8, [3][]byte{}}}
		f.Add(end.save(true))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		shape, err := Learn(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		file, err := shape.Open(bytes.NewReader(b), int64(len(b)))
		require.NoError(t, err)
		if len(file.Tokens) == 0 || !file.End() {
			return
		}
		layout, err := pagefile.NewLayout(shape.EndSections(file.WindowRows()), len(file.Tokens))
		if err != nil {
			return // no rows, or too long for one page
		}
		page := make([]byte, layout.Size())
		require.NoError(t, file.ReadRows(layout, 0, page))
	})
}

// TestTheReasonOfARefusal is that of the form of which most of the file is.
func TestTheReasonOfARefusal(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 1))
	shape := anyShape()
	b := append(newServer(rng, shape, someTokens(rng, 9), 5).save(true), "SCKP\x07\x00\x00\x00"...)
	_, err := Learn(bytes.NewReader(b), int64(len(b)))
	var unknown *UnknownError
	require.ErrorAs(t, err, &unknown)
	require.Contains(t, unknown.Reason, "version of the checkpoints")
	require.Equal(t, int64(len(b)), unknown.Offset)
	require.ErrorContains(t, err, ErrUnknown.Error())
}

// within is a writer of a range of a file.
type within struct {
	*file
	from, to int64
}

func (w within) WriteAt(p []byte, off int64) (int, error) {
	if off < w.from || off+int64(len(p)) > w.to {
		return 0, fmt.Errorf("bytes %d to %d are not in the span from %d to %d", off, off+int64(len(p)), w.from, w.to)
	}
	return w.file.WriteAt(p, off)
}

// TestAFileSpanBySpan: the rows of a section are in its span, those of a page in the page's part
// of it, and heads and spans make the file.
func TestAFileSpanBySpan(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape := aShape(rt)
		window, size := aWindow(rt, shape), rapid.IntRange(1, 20).Draw(rt, "page")
		n := window + rapid.IntRange(1, 70).Draw(rt, "tokens")
		saved, _ := aServer(rt, shape, n, window)
		tokens, b := saved.tokens, saved.save(false)
		f := opened(t, &shape, b)
		out, build := built(t, &shape, tokens, window)
		end := int64(0)
		for _, span := range build.Spans() {
			require.GreaterOrEqual(t, span.Offset, end, "in order")
			end = span.Offset + span.Size
			for start := 0; start < n; start += size {
				upto := min(n, start+size)
				if span.End && upto < n {
					continue
				}
				part := within{out, span.Offset, end}
				if span.Row > 0 {
					part.from, part.to = span.Offset+int64(start)*span.Row, span.Offset+int64(upto)*span.Row
				}
				layout, page := pageOf(t, f, []pagefile.Section{span.Section}, start, upto-start)
				require.NoError(t, build.To(part).WriteRows(layout, start, upto-start, page))
			}
		}
		require.LessOrEqual(t, end, build.Size())
		got := restore(t, shape, out.b, window)
		require.Equal(t, tokens, got.tokens)
		requireRows(t, saved, got, n, window)
	})
}
