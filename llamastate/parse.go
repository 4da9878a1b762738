package llamastate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// ErrUnknown reports a file that this package does not understand, or that does not have the
// expected shape. The rows of such a file must not be stored.
var ErrUnknown = errors.New("llamastate: file is not understood")

// UnknownError is an ErrUnknown with its reason.
type UnknownError struct {
	Reason string
	Offset int64 // bytes of the file before it
}

// Error implements error.
func (e *UnknownError) Error() string { return fmt.Sprintf("%v: %s", ErrUnknown, e.Reason) }

// Is reports whether target is ErrUnknown.
func (e *UnknownError) Is(target error) bool { return target == ErrUnknown }

func unknown(at int64, format string, args ...any) error {
	return &UnknownError{fmt.Sprintf(format, args...), at}
}

const (
	magic       = 0x67677371 // "ggsq"
	packed      = -1         // first word in place of a token: a list with media follows
	packedForm  = 1          // version of that list
	oldest      = 2          // versions of the format
	newest      = 4
	maxTokens   = 1 << 24
	maxStreams  = 1 << 10
	maxLayers   = 1 << 12
	maxTensor   = 1 << 28 // bytes of a tensor's row
	maxType     = 1 << 10 // of ggml
	maxElements = 1 << 24 // of a row of a transposed V

	checkpointsMagic   = 0x504b4353 // "SCKP"
	checkpointsVersion = 1
	maxCheckpoints     = 1 << 10
)

// File is a file whose every byte is accounted for.
type File struct {
	// Shape is the shape of the file, with as many streams and layers as the file has.
	Shape Shape

	// Tokens are the tokens of the slot, of which those of Media are MediaToken.
	Tokens []int32

	// Media are the images and sounds among them.
	Media []Medium

	// Cut reports whether the slot holds more: Tokens ends before the first medium that is not understood.
	Cut bool

	// Checkpoints is the number of bytes behind the caches: states of earlier positions, which
	// llama-server keeps to go back, and which are not read here.
	Checkpoints int64

	r      io.ReaderAt
	caches []content
}

// content is where the content of one cache is in a file.
type content struct {
	cells   int        // number of cells
	order   []int32    // full, window: the cell of each position from first on, -1 where there is none
	first   int        // the position of order[0]
	tensors [2][]int64 // offsets of the rows of each tensor
}

// form is the part of a shape that a parser must know in advance.
type form struct {
	kinds []Kind
	ext   bool // cells have two-dimensional positions
	v     bool // layers with attention have a V
}

// grids reports whether caches tell the columns and rows of an image.
func (f form) grids() bool { return f.ext && !slices.Contains(f.kinds, Window) }

func forms() []form {
	var all []form
	for _, kinds := range [][]Kind{{Full}, {Full, Window}, {Full, Recurrent}, {Full, Window, Recurrent}, {Recurrent}} {
		for _, ext := range []bool{false, true} {
			for _, v := range []bool{true, false} {
				if kinds[0] != Recurrent || !ext && v {
					all = append(all, form{kinds, ext, v})
				}
			}
		}
	}
	return all
}

// Learn finds the shape of the files of a server from a file of size bytes. Learn returns
// ErrUnknown unless exactly one shape accounts for every byte. A file of one token suffices.
func Learn(r io.ReaderAt, size int64) (*Shape, error) {
	var found *Shape
	var why *UnknownError // of the form that accounts for most bytes
	for _, f := range forms() {
		file, err := parse(r, size, f)
		var refused *UnknownError
		switch {
		case errors.As(err, &refused):
			if why == nil || refused.Offset > why.Offset {
				why = refused
			}
		case err != nil:
			return nil, err
		case found != nil:
			return nil, unknown(size, "two shapes fit: %+v and %+v", *found, file.Shape)
		default:
			found = &file.Shape
		}
	}
	if found == nil {
		return nil, why
	}
	return found, nil
}

// Open reads the heads of a file of size bytes. Open returns ErrUnknown unless the file has
// this shape, holds each position of its Tokens once, and has no other byte. Cells behind these may
// share positions. The File reads from r.
func (s *Shape) Open(r io.ReaderAt, size int64) (*File, error) {
	f := form{v: true}
	for _, c := range s.Caches {
		f.kinds = append(f.kinds, c.Kind)
		f.ext = f.ext || c.Ext
		f.v = f.v && (c.Kind == Recurrent || len(c.Tensors[1]) > 0)
	}
	file, err := parse(r, size, f)
	if err != nil {
		return nil, err
	}
	if !file.Shape.Equal(s) {
		return nil, unknown(size, "its shape %+v is not that of the server, %+v", file.Shape, *s)
	}
	return file, nil
}

func parse(r io.ReaderAt, size int64, f form) (*File, error) {
	p := &parser{r: r, size: size}
	file := &File{r: r}
	total := p.header(file, f.grids())
	at := spotsOf(len(file.Tokens), file.Media)
	for _, kind := range f.kinds {
		c, at := p.cache(kind, f, file, &at, total)
		file.Shape.Caches = append(file.Shape.Caches, c)
		file.caches = append(file.caches, at)
	}
	if p.err == nil && p.off < size {
		file.Checkpoints = size - p.checkpoints()
	}
	if p.err == nil && p.off != size {
		p.err = unknown(p.off, "%d bytes follow the last cache", size-p.off)
	}
	if p.err != nil {
		return nil, p.err
	}
	return file, nil
}

// parser reads numbers from a file, one after another. After an error all numbers are 0.
type parser struct {
	r    io.ReaderAt
	size int64
	off  int64 // of the next number
	err  error
	need int64 // bytes that the file must have to be read further; 0 if it has them

	sequence *int32 // of all cells; nil before the first cell

	buf   []byte // read ahead
	begin int64  // offset of buf in the file
}

// ahead is the number of bytes that a parser reads at once.
const ahead = 1 << 16

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = unknown(p.off, format, args...)
	}
}

// has reports whether the file has n more bytes, and fails otherwise.
func (p *parser) has(n int64, format string, args ...any) bool {
	if p.err == nil && n > p.size-p.off {
		p.fail(format, args...)
		p.need = p.off + n
	}
	return p.err == nil
}

// take returns the next n bytes, at most ahead; zeros after an error.
func (p *parser) take(n int64) []byte {
	if !p.has(n, "it ends within the number at byte %d", p.off) {
		return make([]byte, n)
	}
	if at := p.off - p.begin; at < 0 || at+n > int64(len(p.buf)) {
		p.buf = slices.Grow(p.buf[:0], ahead)[:min(ahead, p.size-p.off)]
		p.begin = p.off
		if _, err := p.r.ReadAt(p.buf, p.off); err != nil && !(errors.Is(err, io.EOF) && int64(len(p.buf)) == p.size-p.off) {
			p.err, p.buf = fmt.Errorf("read state at byte %d: %w", p.off, err), p.buf[:0]
			return make([]byte, n)
		}
	}
	b := p.buf[p.off-p.begin:][:n]
	p.off += n
	return b
}

func (p *parser) bytes(b []byte) {
	for len(b) > 0 && p.err == nil {
		b = b[copy(b, p.take(int64(min(len(b), ahead)))):]
	}
}

func (p *parser) u32() uint32 { return binary.LittleEndian.Uint32(p.take(4)) }
func (p *parser) i32() int32  { return int32(p.u32()) }
func (p *parser) u64() uint64 { return binary.LittleEndian.Uint64(p.take(8)) }

// count reads a u32 that is at least min and at most most.
func (p *parser) count(what string, least, most uint32) uint32 {
	at, n := p.off, p.u32()
	if p.err == nil && (n < least || n > most) {
		p.fail("%s at byte %d is %d, want %d to %d", what, at, n, least, most)
	}
	if p.err != nil {
		return 0
	}
	return n
}

// skip passes over n bytes and returns their offset.
func (p *parser) skip(n int64) int64 {
	at := p.off
	if n < 0 {
		p.fail("%d bytes follow byte %d", n, at)
	}
	if p.has(n, "it ends within the %d bytes from byte %d on", n, at) {
		p.off += n
	}
	return at
}

// header reads the tokens and returns their number, those that are cut off included. grids says that caches
// tell the columns and rows of an image.
func (p *parser) header(file *File, grids bool) (total int) {
	if m := p.u32(); m != magic {
		p.fail("it begins with %#x", m)
	}
	file.Shape.Version = p.count("version", oldest, newest)
	words := p.count("number of words", 1, maxTokens)
	end := p.off + 4*int64(words)
	if p.i32() != packed {
		p.off -= 4
		file.Tokens = p.tokens(int(words))
	} else {
		p.count("form of the tokens", packedForm, packedForm)
		file.Tokens = p.tokens(int(p.count("number of tokens", 1, words)))
		p.media(file, end, grids)
	}
	total = len(file.Tokens)
	known := 0 // tokens before which all media are known
	for _, m := range file.Media {
		i := slices.IndexFunc(file.Tokens[known:m.Start], func(t int32) bool { return t < 0 })
		if i >= 0 {
			p.fail("token %d is %d", known+i, file.Tokens[known+i])
		}
		known = m.End()
	}
	if i := slices.IndexFunc(file.Tokens[known:], func(t int32) bool { return t < 0 }); i >= 0 {
		if !file.Cut {
			p.fail("token %d is %d", known+i, file.Tokens[known+i])
		}
		file.Tokens = file.Tokens[:known+i]
	} else if file.Cut {
		p.fail("no token stands for its media")
	}
	return total
}

func (p *parser) tokens(n int) []int32 {
	if !p.has(4*int64(n), "it ends within its %d tokens", n) {
		return nil
	}
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = p.i32()
	}
	return tokens
}

// cache reads the head of one cache, and passes over its rows.
func (p *parser) cache(kind Kind, f form, file *File, spots *spots, total int) (Cache, content) {
	if kind == Recurrent {
		return p.recurrent(file, spots, total)
	}
	c := Cache{Kind: kind, Streams: p.count("number of streams", 1, maxStreams), Ext: f.ext}
	var at content
	for range c.Streams {
		n := int(p.count("number of cells", 0, maxTokens))
		if n == 0 {
			continue
		}
		if at.cells > 0 {
			p.fail("two streams hold cells")
		}
		at.cells = n
		at.first, at.order = p.cells(n, &c, file, spots, total)
		p.attention(&c, &at, f.v, file.Shape.Version)
	}
	if at.cells == 0 {
		p.fail("no stream holds cells")
	}
	return c, at
}

// cells reads the cells of an attention cache and returns the cell of each token, from the first token on.
func (p *parser) cells(n int, c *Cache, file *File, spots *spots, total int) (first int, order []int32) {
	version, tokens := file.Shape.Version, file.Tokens
	if n > total {
		p.fail("%d cells hold %d tokens", n, total)
	}
	if !p.has(int64(n)*c.cellBytes(version), "it ends within its %d cells", n) {
		return 0, nil
	}
	if c.Kind == Window {
		first = max(0, len(tokens)-n)
	}
	// Cells beyond the text are those of media, and have positions of their own.
	order = slices.Repeat([]int32{-1}, len(tokens)-first)
	found := 0
	for i := range n {
		pos, x, y, token := p.cell(c, version)
		if p.err != nil {
			return first, nil
		}
		at, is := spots.token(pos, x, y)
		if is && c.Ext && version >= 3 && token != tokens[at] {
			p.fail("cell %d of token %d, which is %d, is for %d", i, at, tokens[at], token)
			return first, nil
		}
		switch at -= first; {
		case is && at >= 0 && order[at] < 0:
			order[at] = int32(i)
			found++
		case total > len(tokens) && int(pos) >= spots.end:
		case total > len(tokens) && c.Kind == Window && is && at < 0:
			// An image is in the window, and the window begins before it.
		default:
			p.fail("cell %d holds position %d (%d, %d), of %d to %d, or a position twice", i, pos, x, y, first, spots.end-1)
			return first, nil
		}
	}
	if total == len(tokens) && found != n || c.Kind == Full && found != len(tokens) {
		p.fail("%d cells hold %d of %d positions", n, found, len(tokens))
	}
	return first, order
}

// cellBytes is the size of a cell in a file.
func (c *Cache) cellBytes(version uint32) int64 {
	switch {
	case c.Ext && version >= 3:
		return 24
	case c.Ext:
		return 20
	}
	return 12
}

// cell reads one cell and returns its positions and, if it has one, its token.
func (p *parser) cell(c *Cache, version uint32) (pos, x, y, token int32) {
	at := p.off
	pos = p.i32()
	p.count("number of sequences", 1, 1)
	x, y = pos, pos
	if c.Ext {
		x, y = p.i32(), p.i32()
		if version >= 3 {
			token = p.i32()
		}
	}
	if sequence := p.i32(); p.sequence == nil {
		p.sequence = &sequence
	} else if *p.sequence != sequence {
		p.fail("cell at byte %d belongs to sequence %d, others to %d", at, sequence, *p.sequence)
	}
	return pos, x, y, token
}

// attention reads the heads of K and V of a cache, and passes over their rows.
func (p *parser) attention(c *Cache, at *content, v bool, version uint32) {
	c.Transposed = p.count("transposition", 0, 1) == 1
	c.Layers = p.count("number of layers", 1, maxLayers)
	if version >= 4 {
		c.Rotations = [2]uint32{p.u32(), p.u32()}
	}
	for half := range 2 {
		if half == 1 && !v {
			return
		}
		for range c.Layers {
			t := p.tensor(half == 1 && c.Transposed)
			at.tensors[half] = append(at.tensors[half], p.skip(t.Row*int64(at.cells)))
			c.Tensors[half] = append(c.Tensors[half], t)
			if p.err != nil {
				return
			}
		}
	}
}

func (p *parser) tensor(transposed bool) Tensor {
	t := Tensor{Type: int32(p.count("type", 0, maxType))}
	if transposed {
		t.Element = int64(p.count("size of an element", 1, 64))
		t.Row = t.Element * int64(p.count("number of elements", 1, maxElements))
		return t
	}
	at, row := p.off, p.u64()
	if row > maxTensor {
		p.fail("bytes of a row at byte %d are %d", at, row)
		return t
	}
	t.Row = int64(row)
	return t
}

// recurrent reads the head of a recurrent cache, which is the last one, and passes over its
// states. The file does not say how many layers are recurrent: each has both states, the size
// of each is the same in all layers.
func (p *parser) recurrent(file *File, spots *spots, total int) (Cache, content) {
	c, at := Cache{Kind: Recurrent}, content{cells: 1}
	p.count("number of states", 1, 1)
	if pos := p.i32(); p.err == nil && !file.lastAt(spots, pos, total) {
		p.fail("the state is that after position %d of %d tokens", pos, total)
	}
	p.count("number of sequences", 0, 0)
	p.count("transposition", 0, 0)
	c.Layers = p.count("number of layers", 1, maxLayers)
	var tensors []Tensor
	var offsets []int64
	for p.err == nil && p.off < p.size && !p.atCheckpoints() {
		if len(tensors) == 2*int(c.Layers) {
			p.fail("%d layers have more than %d states", c.Layers, len(tensors))
		}
		t := p.tensor(false)
		tensors, offsets = append(tensors, t), append(offsets, p.skip(t.Row))
	}
	half := len(tensors) / 2
	if p.err == nil && (half == 0 || len(tensors)%2 != 0 || !same(tensors[:half]) || !same(tensors[half:])) {
		p.fail("%d states are not two of each layer", len(tensors))
	}
	c.Tensors = [2][]Tensor{tensors[:half], tensors[half:]}
	at.tensors = [2][]int64{offsets[:half], offsets[half:]}
	return c, at
}

// lastAt reports whether the last of all tokens has a position, as far as media are known.
func (f *File) lastAt(spots *spots, pos int32, total int) bool {
	if f.Cut {
		return int(pos) >= spots.end && int(pos) < total
	}
	last, _, _ := spots.of(total - 1)
	return pos == last
}

// atCheckpoints reports whether the section of checkpoints begins here. No type of a tensor is as
// large as the number with which it begins.
func (p *parser) atCheckpoints() bool {
	if p.err != nil || p.size-p.off < 4 {
		return false
	}
	at := p.off
	defer func() { p.off = at }()
	return p.u32() == checkpointsMagic
}

// checkpoints passes over the section of checkpoints, if that follows, and returns its offset.
func (p *parser) checkpoints() int64 {
	at := p.off
	if !p.atCheckpoints() {
		return at
	}
	p.u32()
	p.count("version of the checkpoints", checkpointsVersion, checkpointsVersion)
	for range p.count("number of checkpoints", 0, maxCheckpoints) {
		tokens, first, last := p.u64(), p.i32(), p.i32()
		if p.err == nil && (tokens < 1 || tokens > maxTokens || first < 0 || last < first || last >= maxTokens) {
			p.fail("the checkpoint before byte %d is that of %d tokens, and of positions %d to %d", p.off, tokens, first, last)
		}
		for range 3 { // states of the model, of a model that drafts, and of drafting
			size := p.u64()
			if size > uint64(p.size) {
				p.fail("a state of a checkpoint before byte %d has %d bytes", p.off, size)
			}
			if p.err != nil {
				return at
			}
			p.skip(int64(size))
		}
	}
	return at
}

// same reports whether all tensors have one type and size.
func same(tensors []Tensor) bool {
	return len(slices.Compact(slices.Clone(tensors))) == 1
}
