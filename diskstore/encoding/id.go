package encoding

import (
	"errors"
	"fmt"
)

// ID names an encoding in the section table of a page file.
type ID uint8

const (
	Raw   ID = 0 // the rows themselves
	Zstd  ID = 1 // one frame of RFC 8878
	Split ID = 2 // planes of bytes, some of them in Huffman codes
)

// String returns "raw", "zstd", "split", or the number of an unknown encoding.
func (id ID) String() string {
	if id.Known() {
		return [...]string{"raw", "zstd", "split"}[id]
	}
	return fmt.Sprintf("encoding %d", uint8(id))
}

// Known reports whether this package decodes the encoding.
func (id ID) Known() bool { return id <= Split }

// ErrCorrupt reports stored bytes that are not an encoding of the wanted number of bytes.
var ErrCorrupt = errors.New("encoding: stored bytes are corrupt")

// corrupt returns an ErrCorrupt with a description.
func corrupt(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrCorrupt)...)
}
