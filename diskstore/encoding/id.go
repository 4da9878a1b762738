package encoding

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ID names an encoding in the section table of a page file.
type ID uint8

const (
	Raw   ID = 0 // the rows themselves
	Zstd  ID = 1 // one frame of RFC 8878
	Split ID = 2 // planes of bytes, some of them in Huffman codes

	// Lossy encodings of f16. docs/page-format.md documents them.
	Q8_0 ID = 16 // ggml's blocks of 32 numbers of 8 bits
	Q4_0 ID = 17 // ggml's blocks of 32 numbers of 4 bits
	Int4 ID = 18 // 4 bits, arranged as the section needs it
)

var names = map[ID]string{Raw: "raw", Zstd: "zstd", Split: "split", Q8_0: "q8_0", Q4_0: "q4_0", Int4: "int4"}

// String returns the encoding's name, such as "raw" or "q8_0", or the number of an unknown encoding.
func (id ID) String() string {
	if name, ok := names[id]; ok {
		return name
	}
	return fmt.Sprintf("encoding %d", uint8(id))
}

// Known reports whether this package decodes the encoding.
func (id ID) Known() bool {
	_, ok := names[id]
	return ok
}

// Lossy reports whether the encoding is one of Q8_0, Q4_0 and Int4, which give other rows back than
// those that were encoded.
func (id ID) Lossy() bool { return id >= Q8_0 && id <= Int4 }

// ParseCold reads the lossy encodings of K and of V, such as "q8_0,q4_0", or one for both, such as "int4".
func ParseCold(text string) (k, v ID, err error) {
	lossy := []ID{Q8_0, Q4_0, Int4}
	first, second, both := strings.Cut(text, ",")
	if !both {
		second = first
	}
	for _, part := range []struct {
		name string
		id   *ID
	}{{first, &k}, {second, &v}} {
		i := slices.IndexFunc(lossy, func(id ID) bool { return id.String() == strings.TrimSpace(part.name) })
		if i < 0 {
			return Raw, Raw, fmt.Errorf("read cold type %q: %q is none of q8_0, q4_0, int4; give one of them, or one for K and one for V as in q8_0,q4_0",
				text, part.name)
		}
		*part.id = lossy[i]
	}
	return k, v, nil
}

// ErrCorrupt reports stored bytes that are not an encoding of the wanted number of bytes.
var ErrCorrupt = errors.New("encoding: stored bytes are corrupt")

func corrupt(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrCorrupt)...)
}
