package sizing

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
)

// Bounds of a head. Upstream's readers allocate the lengths that a file names, so that a
// hostile file ends the process; this reader skips all other values than those of a shape.
const (
	headBytesMax    = 256 << 20
	keysMax         = 1 << 16
	tensorsMax      = 1 << 20
	dimensionsMax   = 8
	stringBytesMax  = 64 << 10 // of strings that are kept
	elementsKeptMax = 4096     // of arrays that are kept; there is one element per layer
	numbersKeptMax  = 1 << 20  // of all arrays and scalars together
	arrayMax        = 4 << 20  // elements of an array: a vocabulary has some hundred thousand texts
)

// ErrNotGGUF is the error of a file that is no GGUF file, or whose head contradicts itself.
var ErrNotGGUF = errors.New("it is no GGUF file that can be read")

// Header is the head of a GGUF file: numbers, flags and texts, without arrays of text and
// without long arrays.
type Header struct {
	// WeightBytes is the size of all tensors: the file without its head.
	WeightBytes int64

	texts   map[string]string
	numbers map[string][]int64 // one element for a scalar
	flags   map[string][]bool
}

// Types of GGUF's values.
const (
	typeUint8 uint32 = iota
	typeInt8
	typeUint16
	typeInt16
	typeUint32
	typeInt32
	typeFloat32
	typeBool
	typeString
	typeArray
	typeUint64
	typeInt64
	typeFloat64
)

// typeBytes are the sizes of the types that have one.
var typeBytes = map[uint32]int64{
	typeUint8: 1, typeInt8: 1, typeBool: 1, typeUint16: 2, typeInt16: 2, typeUint32: 4, typeInt32: 4,
	typeFloat32: 4, typeUint64: 8, typeInt64: 8, typeFloat64: 8,
}

// ReadHeader reads the head of a GGUF file of size bytes.
func ReadHeader(r io.Reader, size int64) (*Header, error) {
	h := &Header{texts: map[string]string{}, numbers: map[string][]int64{}, flags: map[string][]bool{}}
	p := &parser{r: bufio.NewReaderSize(r, 64<<10), left: min(size, headBytesMax), h: h}
	if p.number(4); string(p.buf[:4]) != "GGUF" {
		p.fail("it begins with %q", p.buf[:4])
	}
	if v := p.number(4); v < 2 || v > 3 {
		p.fail("its version is %d", v)
	}
	tensors, keys := p.count("tensors", tensorsMax), p.count("values", keysMax)
	for range keys {
		p.value()
	}
	for range tensors {
		p.tensor()
	}
	if p.err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotGGUF, p.err)
	}
	align := h.Number("general.alignment")
	if align <= 0 || align > headBytesMax {
		align = 32
	}
	h.WeightBytes = max(0, size-(p.read+align-1)/align*align)
	return h, nil
}

// CheckFile reads the whole head of a model's file. Upstream's readers may read a file that passes.
func CheckFile(path string) error {
	_, err := readFile(path)
	return err
}

func readFile(path string) (*Header, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file") // a pipe would wait for a writer
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadHeader(f, info.Size())
}

// ReadShape reads the head of a model's file, and works its shape out.
func ReadShape(path string) (*Shape, *Header, error) {
	h, err := readFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read model %s: %w", path, err)
	}
	s, err := ShapeOf(h)
	if err != nil {
		return nil, nil, fmt.Errorf("read model %s: %w", path, err)
	}
	return s, h, nil
}

// parser reads a head. After an error it reads zeros, and no loop goes on.
type parser struct {
	r          *bufio.Reader
	read, left int64
	kept       int // numbers and flags
	h          *Header
	err        error
	buf        [8]byte
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("byte %d: "+format, append([]any{p.read}, args...)...)
	}
}

// has reports whether n more bytes may be read.
func (p *parser) has(n uint64) bool {
	switch {
	case p.err != nil:
		return false
	case n > uint64(max(0, p.left)):
		p.fail("the head goes on for %d bytes, and %d are left", n, p.left)
		return false
	}
	p.read, p.left = p.read+int64(n), p.left-int64(n)
	return true
}

func (p *parser) number(bytes int64) uint64 {
	clear(p.buf[:])
	if p.has(uint64(bytes)) {
		if _, err := io.ReadFull(p.r, p.buf[:bytes]); err != nil {
			p.fail("%w", err)
		}
	}
	return binary.LittleEndian.Uint64(p.buf[:])
}

// count reads a number of things; 0 after an error.
func (p *parser) count(what string, most uint64) uint64 {
	n := p.number(8)
	if n > most {
		p.fail("it has %d %s, and %d is the most", n, what, most)
	}
	if p.err != nil {
		return 0
	}
	return n
}

func (p *parser) skip(n uint64) {
	if !p.has(n) {
		return
	}
	if _, err := io.CopyN(io.Discard, p.r, int64(n)); err != nil {
		p.fail("%w", err)
	}
}

// text reads a string, and returns "" for one that is too long to keep.
func (p *parser) text() string {
	n := p.number(8)
	if n > stringBytesMax {
		p.skip(n)
		return ""
	}
	if !p.has(n) {
		return ""
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(p.r, b); err != nil {
		p.fail("%w", err)
	}
	return string(b)
}

func (p *parser) value() {
	if p.err != nil {
		return
	}
	key, kind := p.text(), uint32(p.number(4))
	switch kind {
	case typeString:
		p.h.texts[key] = p.text()
	case typeArray:
		p.array(key)
	default:
		p.elements(key, kind, 1)
	}
}

func (p *parser) array(key string) {
	kind, n := uint32(p.number(4)), p.number(8)
	switch {
	case n > arrayMax:
		p.fail("an array has %d elements", n)
	case kind == typeString:
		for ; n > 0 && p.err == nil; n-- {
			p.skip(p.number(8))
		}
	case typeBytes[kind] == 0:
		p.fail("an array has elements of type %d", kind)
	case n > elementsKeptMax:
		p.skip(n * uint64(typeBytes[kind]))
	default:
		p.elements(key, kind, int(n))
	}
}

// elements reads numbers or flags. Fractions are skipped: no size follows from them.
func (p *parser) elements(key string, kind uint32, n int) {
	size := typeBytes[kind]
	if size == 0 {
		p.fail("a value is of type %d", kind)
		return
	}
	if p.kept += n; p.kept > numbersKeptMax {
		p.fail("it has more than %d numbers", numbersKeptMax)
		return
	}
	for range n {
		v := p.number(size)
		if p.err != nil {
			return
		}
		unused := 64 - 8*size // bits
		switch kind {
		case typeFloat32, typeFloat64:
		case typeBool:
			p.h.flags[key] = append(p.h.flags[key], v != 0)
		case typeInt8, typeInt16, typeInt32, typeInt64:
			p.h.numbers[key] = append(p.h.numbers[key], int64(v<<unused)>>unused)
		default: // one that an int64 does not hold becomes the largest
			p.h.numbers[key] = append(p.h.numbers[key], int64(min(v, math.MaxInt64)))
		}
	}
}

func (p *parser) tensor() {
	if p.err != nil {
		return
	}
	p.text()
	dimensions := p.number(4)
	if dimensions > dimensionsMax {
		p.fail("a tensor has %d dimensions", dimensions)
		return
	}
	p.skip(dimensions*8 + 4 + 8) // sizes, type, place
}

// Architecture is the model's architecture, "" if the file names none.
func (h *Header) Architecture() string { return h.texts["general.architecture"] }

// key adds the architecture to the name of a value, as GGUF does.
func (h *Header) key(name string) string {
	if strings.HasPrefix(name, "general.") {
		return name
	}
	return h.Architecture() + "." + name
}

// Number returns a number, 0 if the file has none of that name or several.
func (h *Header) Number(name string) int64 {
	if n := h.numbers[h.key(name)]; len(n) == 1 {
		return n[0]
	}
	return 0
}

// Numbers returns a list of numbers, also one of a single element.
func (h *Header) Numbers(name string) []int64 { return h.numbers[h.key(name)] }

// Flags returns a list of flags.
func (h *Header) Flags(name string) []bool { return h.flags[h.key(name)] }
