package encoding

import (
	"encoding/binary"
	"errors"
	"io"
)

// CheckSplit reads a Split section of n decoded bytes from r and checks it by decoding. CheckSplit
// keeps nothing, and needs memory for one block. It returns ErrCorrupt, or an error of r.
// CheckSplit reads nothing behind the section.
func CheckSplit(r io.Reader, n int64) error {
	buf := make([]byte, blockBytes+4*widthMax)
	if err := fill(r, buf[:splitHeaderBytes]); err != nil {
		return err
	}
	s, bases, err := readSplit(buf, n)
	if err != nil {
		return err
	}
	s.bases = make([]byte, bases)
	if err := fill(r, s.bases); err != nil {
		return err
	}
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	block := make([]byte, min(n, int64(s.block())))
	for ; n > 0; n -= int64(len(block)) {
		block = block[:min(n, int64(len(block)))]
		size, err := readBlock(r, buf, s.width, len(block))
		if err != nil {
			return err
		}
		if _, err := sc.decodeBlock(buf[:size], block, s); err != nil {
			return err
		}
	}
	return nil
}

// readBlock reads a block of n decoded bytes into buf and returns its size.
func readBlock(r io.Reader, buf []byte, width, n int) (size int, err error) {
	size = 4 * width
	if err := fill(r, buf[:size]); err != nil {
		return 0, err
	}
	for i := range width {
		length := int(binary.LittleEndian.Uint32(buf[4*i:]) >> 2)
		if length > n/width {
			return 0, corrupt("a plane of %d bytes for %d numbers", length, n/width)
		}
		if err := fill(r, buf[size:size+length]); err != nil {
			return 0, err
		}
		size += length
	}
	return size, nil
}

// fill reads all of p. The end of r before that is an ErrCorrupt.
func fill(r io.Reader, p []byte) error {
	_, err := io.ReadFull(r, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("the section ends early")
	}
	return err
}
