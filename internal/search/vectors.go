package search

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

/*
A file of vectors, little endian:

	offset  size
	     0     8  vectorsMagic
	     8    32  digest of the embedding model
	    40    32  key of the page
	    72    32  key of the page before
	   104     4  position of the page's first token
	   108     4  tokens in the page
	   112     4  D, numbers of a vector
	   116     4  N, vectors
	   120        N vectors: first token in the page, scale (float32), D numbers (int8)
	              CRC-32C of all before

A number is its int8 times the scale. Vectors have length 1.
*/
const (
	vectorsMagic = "KVTVEC1\n"
	vectorsHead  = 120

	// dimsMax and partsMax bound a file: no embedding model has longer vectors.
	dimsMax  = 8192
	partsMax = 1 << 16
)

var (
	le         = binary.LittleEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// place is where a page is in its conversation.
type place struct {
	Key, Parent   pagefile.Key
	Start, Tokens int
}

func (p place) end() int { return p.Start + p.Tokens }

// vector is that of the part of a page that begins at a token.
type vector struct {
	at      int
	scale   float32
	numbers []int8
}

// quantize rounds a vector to 8 bits. The largest error of a score is about 0.004.
func quantize(at int, v []float32) vector {
	var most float32
	for _, x := range v {
		most = max(most, x, -x)
	}
	q := vector{at: at, scale: most / math.MaxInt8, numbers: make([]int8, len(v))}
	for i, x := range v {
		q.numbers[i] = int8(math.RoundToEven(float64(x / q.scale)))
	}
	return q
}

// score is the cosine of two vectors of length 1 and as many numbers.
func (v vector) score(query []float32) float64 {
	var sum float32
	for i, x := range v.numbers {
		sum += float32(x) * query[i]
	}
	return float64(sum * v.scale)
}

// encode returns the file of a page's vectors.
func encode(model [32]byte, p place, vectors []vector) []byte {
	dims := 0
	if len(vectors) > 0 {
		dims = len(vectors[0].numbers)
	}
	b := append([]byte(vectorsMagic), model[:]...)
	b = append(append(b, p.Key[:]...), p.Parent[:]...)
	for _, n := range []int{p.Start, p.Tokens, dims, len(vectors)} {
		b = le.AppendUint32(b, uint32(n))
	}
	for _, v := range vectors {
		b = le.AppendUint32(b, uint32(v.at))
		b = le.AppendUint32(b, math.Float32bits(v.scale))
		for _, x := range v.numbers {
			b = append(b, byte(x))
		}
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decode reads the file of a page's vectors, of dims numbers each. An error means that they have to be computed.
func decode(b []byte, model [32]byte, key pagefile.Key, dims int) (place, []vector, error) {
	var p place
	if len(b) < vectorsHead+4 || !bytes.HasPrefix(b, []byte(vectorsMagic)) {
		return p, nil, fmt.Errorf("%d bytes are no file of vectors", len(b))
	}
	body, sum := b[:len(b)-4], le.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return p, nil, fmt.Errorf("vectors of page %v are damaged", key)
	}
	if [32]byte(b[8:40]) != model || pagefile.Key(b[40:72]) != key {
		return p, nil, fmt.Errorf("vectors are of another model, or of another page than %v", key)
	}
	p = place{Key: key, Parent: pagefile.Key(b[72:104]), Start: int(le.Uint32(b[104:])), Tokens: int(le.Uint32(b[108:]))}
	has, n := int(le.Uint32(b[112:])), int(le.Uint32(b[116:]))
	if n > partsMax || n > 0 && has != dims || len(body) != vectorsHead+n*(8+has) {
		return p, nil, fmt.Errorf("%d vectors of %d numbers do not fit into %d bytes", n, has, len(b))
	}
	vectors := make([]vector, n)
	for i := range vectors {
		at := body[vectorsHead+i*(8+dims):]
		v := vector{at: int(le.Uint32(at)), scale: math.Float32frombits(le.Uint32(at[4:])), numbers: make([]int8, dims)}
		for j := range v.numbers {
			v.numbers[j] = int8(at[8+j])
		}
		if v.at >= p.Tokens || !(v.scale > 0 && v.scale <= 1) {
			return p, nil, fmt.Errorf("vector %d is no unit vector of a part of the page", i)
		}
		vectors[i] = v
	}
	return p, vectors, nil
}
