package llamastate

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// server is llama-server's side of a file: a sequence in the memory of each cache.
type server struct {
	shape  Shape
	tokens []int32 // -1 for a token of a medium
	caches []memory

	checkpoints []checkpoint // nil: the file ends with the caches
}

// checkpoint is a state of an earlier position that a server keeps.
type checkpoint struct {
	tokens, first, last int
	states              [3][]byte // of the model, of a model that drafts, and of drafting
}

// someCheckpoints are those of a sequence of n tokens.
func someCheckpoints(rng *rand.Rand, n int) []checkpoint {
	all := []checkpoint{}
	for range rng.IntN(4) {
		last := rng.IntN(n)
		all = append(all, checkpoint{last + 1, rng.IntN(last + 1), last, [3][]byte{randomBytes(rng, rng.IntN(50)), randomBytes(rng, rng.IntN(2)*9), nil}})
	}
	return all
}

// memory is the memory of one cache for one sequence.
type memory struct {
	stream int
	pos    []int32               // of each cell, in the order of cells
	rows   [2][]map[int32][]byte // of each tensor, by position
}

// newServer returns a server that has computed tokens. Cells are in a random order.
func newServer(rng *rand.Rand, shape Shape, tokens []int32, window int) *server {
	s := &server{shape: shape, tokens: tokens}
	n := len(tokens)
	for _, c := range shape.Caches {
		var m memory
		first := 0
		switch c.Kind {
		case Window:
			first = max(0, n-window)
		case Recurrent:
			first = n - 1
		}
		for pos := first; pos < n; pos++ {
			m.pos = append(m.pos, int32(pos))
		}
		if c.Kind != Recurrent {
			m.stream = rng.IntN(int(c.Streams))
			for range rng.IntN(4) { // a few runs, moved about
				a, b := rng.IntN(len(m.pos)+1), rng.IntN(len(m.pos)+1)
				m.pos = slices.Concat(m.pos[min(a, b):], m.pos[:min(a, b)])
			}
		}
		for half, tensors := range c.Tensors {
			for _, t := range tensors {
				rows := map[int32][]byte{}
				for _, pos := range m.pos {
					rows[pos] = randomBytes(rng, int(t.Row))
				}
				m.rows[half] = append(m.rows[half], rows)
			}
		}
		s.caches = append(s.caches, m)
	}
	return s
}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// word is a writer and a reader of numbers.
type words struct{ bytes.Buffer }

func (w *words) u32(values ...uint32) {
	for _, v := range values {
		_ = binary.Write(w, binary.LittleEndian, v) // a Buffer has no errors
	}
}

// save writes the file as llama-server does: packed tokens, cells in the order of memory.
func (s *server) save(packedTokens bool) []byte {
	w := &words{}
	w.u32(0x67677371, s.shape.Version)
	if packedTokens {
		w.u32(uint32(len(s.tokens)+4), 0xffffffff, 1, uint32(len(s.tokens)))
	} else {
		w.u32(uint32(len(s.tokens)))
	}
	for _, t := range s.tokens {
		w.u32(uint32(t))
	}
	if packedTokens {
		w.u32(0)
	}
	for i := range s.shape.Caches {
		s.saveCache(w, &s.shape.Caches[i], &s.caches[i])
	}
	if s.checkpoints != nil {
		w.saveCheckpoints(s.checkpoints)
	}
	return w.Bytes()
}

func (w *words) saveCheckpoints(all []checkpoint) {
	w.u32(0x504b4353, 1, uint32(len(all)))
	for _, c := range all {
		w.u32(uint32(c.tokens), 0, uint32(c.first), uint32(c.last))
		for _, state := range c.states {
			w.u32(uint32(len(state)), 0)
			w.Write(state)
		}
	}
}

func (s *server) saveCache(w *words, c *Cache, m *memory) {
	if c.Kind == Recurrent {
		w.u32(1, uint32(m.pos[0]), 0, 0, c.Layers)
		s.saveTensors(w, c, m)
		return
	}
	w.u32(c.Streams)
	for stream := range int(c.Streams) {
		if stream != m.stream {
			w.u32(0)
			continue
		}
		w.u32(uint32(len(m.pos)))
		for _, pos := range m.pos {
			w.u32(uint32(pos), 1)
			if c.Ext {
				w.u32(uint32(pos), uint32(pos))
				if s.shape.Version >= 3 {
					w.u32(uint32(s.tokens[pos]))
				}
			}
			w.u32(3)
		}
		w.u32(flag(c.Transposed), c.Layers)
		if s.shape.Version >= 4 {
			w.u32(c.Rotations[0], c.Rotations[1])
		}
		s.saveTensors(w, c, m)
	}
}

func (s *server) saveTensors(w *words, c *Cache, m *memory) {
	for half, tensors := range c.Tensors {
		for i, t := range tensors {
			w.u32(uint32(t.Type))
			rows, part := m.rows[half][i], t.Row
			if t.Element == 0 {
				w.u32(uint32(t.Row), 0)
			} else {
				w.u32(uint32(t.Element), uint32(t.Row/t.Element))
				part = t.Element
			}
			for e := int64(0); e < t.Row; e += part {
				for _, pos := range m.pos {
					w.Write(rows[pos][e : e+part])
				}
			}
		}
	}
}

// restore reads a file as llama-server does, and requires that the server accepts it and
// consumes it to the end. Positions that the next token does not attend to are left out.
func restore(t testing.TB, shape Shape, file []byte, window int) *server {
	t.Helper()
	r := bytes.NewReader(file)
	u32 := func() uint32 {
		var v uint32
		require.NoError(t, binary.Read(r, binary.LittleEndian, &v))
		return v
	}
	read := func(n int64) []byte {
		b := make([]byte, n)
		_, err := r.Read(b)
		require.True(t, n == 0 || err == nil)
		return b
	}
	requireNext := func(want ...uint32) {
		for _, v := range want {
			require.Equal(t, v, u32())
		}
	}
	requireNext(0x67677371, shape.Version)
	s := &server{shape: shape}
	for range u32() {
		s.tokens = append(s.tokens, int32(u32()))
	}
	for _, c := range shape.Caches {
		m := memory{stream: -1}
		tensors := func() {
			for half := range c.Tensors {
				for _, want := range c.Tensors[half] {
					requireNext(uint32(want.Type))
					rows, part, parts := map[int32][]byte{}, want.Row, int64(1)
					if want.Element == 0 {
						requireNext(uint32(want.Row), 0)
					} else {
						part, parts = want.Element, want.Row/want.Element
						requireNext(uint32(part), uint32(parts))
					}
					for range parts {
						for _, pos := range m.pos {
							rows[pos] = bytes.Join([][]byte{rows[pos], read(part)}, nil)
						}
					}
					m.rows[half] = append(m.rows[half], rows)
				}
			}
		}
		if c.Kind == Recurrent {
			requireNext(1)
			m.pos = []int32{int32(u32())}
			requireNext(0, 0, c.Layers)
			tensors()
			s.caches = append(s.caches, m)
			continue
		}
		requireNext(c.Streams)
		for stream := range int(c.Streams) {
			n := u32()
			if n == 0 {
				continue
			}
			require.Equal(t, -1, m.stream, "one stream holds the sequence")
			m.stream = stream
			for range n {
				pos := int32(u32())
				require.NotEqual(t, int32(-1), pos, "the position of an empty cell")
				require.NotContains(t, m.pos, pos)
				requireNext(1)
				if c.Ext {
					requireNext(uint32(pos), uint32(pos))
					if shape.Version >= 3 {
						if tok := int32(u32()); pos >= 0 && len(m.pos) > 0 {
							require.Equal(t, s.tokens[pos], tok)
						}
					}
				}
				u32()
				m.pos = append(m.pos, pos)
			}
			requireNext(flag(c.Transposed), c.Layers)
			if shape.Version >= 4 {
				requireNext(c.Rotations[:]...)
			}
			tensors()
		}
		if c.Kind == Window {
			s.maskWindow(t, &m, window)
		}
		s.caches = append(s.caches, m)
	}
	require.Zero(t, r.Len(), "bytes after the last cache")
	return s
}

// maskWindow requires of a window that llama-server reuses the prompt with it: the
// lowest position is so low that no token misses a row. maskWindow then drops the cells that
// the next token does not attend to.
func (s *server) maskWindow(t testing.TB, m *memory, window int) {
	next := int32(len(s.tokens))
	require.Less(t, slices.Min(m.pos), max(0, next-int32(window)))
	m.pos = slices.DeleteFunc(m.pos, func(pos int32) bool {
		masked := next-pos > int32(window)
		if masked {
			for half := range m.rows {
				for _, rows := range m.rows[half] {
					delete(rows, pos)
				}
			}
		}
		return masked
	})
}
