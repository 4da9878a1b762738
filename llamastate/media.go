package llamastate

import (
	"encoding/binary"
	"slices"
)

// MediaToken stands for each token of an image or a sound.
const MediaToken = -1

// Medium is an image, or a sound, or a part of one, in a sequence.
type Medium struct {
	Start, Tokens int

	// Columns and Rows are those of an image whose tokens have two-dimensional positions, else 0.
	Columns, Rows int `json:",omitempty"`

	// ID is the SHA-256 of the file that the client sent, in hex. Parts of one image have one ID.
	ID string

	// Chunk is all that llama-server keeps of it, but for ID at a byte IDAt.
	Chunk []byte
	IDAt  int
}

// End is the position behind the last token.
func (m *Medium) End() int { return m.Start + m.Tokens }

// Inside reports whether a position is behind the first token of one of some media, and not behind its last.
func Inside(media []Medium, position int) (of Medium, inside bool) {
	i := slices.IndexFunc(media, func(m Medium) bool { return m.Start < position && position < m.End() })
	if i < 0 {
		return Medium{}, false
	}
	return media[i], true
}

const (
	chunkVersion = 2 // of mtmd_serialization in llama.cpp's tools/mtmd/mtmd.cpp
	chunkImage   = 1
	chunkSound   = 2
	idBytes      = 64
	maxChunk     = 1 << 20
)

// Kinds of the positions of an image's tokens, mtmd_pos_type of llama.cpp.
const (
	onePosition   = 0
	gridPositions = 1
)

// readChunk finds the ID of a medium, and the columns of an image. It returns false for a chunk of another
// version, and for images whose tokens have positions of other kinds.
func readChunk(chunk []byte) (m Medium, ok bool) {
	le, off := binary.LittleEndian, 0
	fail := false
	next := func(n int) []byte {
		if fail = fail || n > len(chunk)-off; fail {
			return make([]byte, 8)
		}
		off += n
		return chunk[off-n : off]
	}
	version, kind, texts := le.Uint64(next(8)), le.Uint32(next(4)), le.Uint64(next(8))
	image := next(1)[0] == 1
	switch {
	case version != chunkVersion, texts != 0, image != (kind == chunkImage), kind != chunkImage && kind != chunkSound:
		return m, false
	case image:
		columns, rows := le.Uint32(next(4)), le.Uint32(next(4))
		switch le.Uint32(next(4)) {
		case onePosition:
		case gridPositions:
			if columns-1 >= maxTokens || rows-1 >= maxTokens {
				return m, false
			}
			m.Columns, m.Rows = int(columns), int(rows)
		default:
			return m, false
		}
		next(8) // which image it is, and how many frames become one
	default:
		if next(1)[0] != 1 {
			return m, false
		}
		next(4) // tokens
	}
	if le.Uint64(next(8)) != idBytes {
		return m, false
	}
	m.IDAt = off
	m.ID = string(next(idBytes))
	m.Chunk = slices.Delete(slices.Clone(chunk), m.IDAt, off)
	return m, !fail
}

// whole returns the chunk as llama-server keeps it.
func (m *Medium) whole() []byte {
	return slices.Concat(m.Chunk[:m.IDAt], []byte(m.ID), m.Chunk[m.IDAt:])
}

// media reads the list of media of a number of words, and where they are among the tokens. Positions
// behind one that is not understood are not known: Tokens ends before it. grids says that caches tell the
// columns and rows of an image.
func (p *parser) media(file *File, end int64, grids bool) {
	starts := make([]uint32, p.count("number of media", 0, uint32(len(file.Tokens))))
	for i := range starts {
		starts[i] = p.u32()
	}
	for i, start := range starts {
		upto := uint32(len(file.Tokens))
		if i+1 < len(starts) {
			upto = starts[i+1]
		}
		size := p.count("bytes of a medium", 1, maxChunk)
		chunk := make([]byte, size)
		p.bytes(chunk)
		if p.err != nil {
			return
		}
		if start >= upto || int(upto) > len(file.Tokens) {
			p.fail("medium %d begins at token %d, the next at %d", i, start, upto)
			return
		}
		m, ok := readChunk(chunk)
		m.Start = int(start)
		for n := start; n < upto && file.Tokens[n] == MediaToken; n++ {
			m.Tokens++
		}
		if m.Tokens == 0 {
			p.fail("no token stands for the medium at token %d", start)
			return
		}
		fits := m.Columns == 0 || grids && m.Columns*m.Rows == m.Tokens
		if file.Cut = file.Cut || !ok || !fits; file.Cut {
			p.skip(end - p.off)
			return
		}
		file.Media = append(file.Media, m)
	}
	if left := end - p.off; left > 3 {
		p.fail("%d bytes follow the media", left)
	}
	p.skip(end - p.off)
}

// CutAt cuts the file off before one of its media.
func (f *File) CutAt(medium int) {
	f.Tokens, f.Media, f.Cut = f.Tokens[:f.Media[medium].Start], f.Media[:medium], true
}
