package encoding

import (
	"encoding/binary"
	"errors"
	"io"
)

// Check reads a section of Split or a lossy encoding, of n decoded bytes, from r and checks it by
// decoding. Check keeps nothing, and needs memory for one block, or for n bytes if these are fewer.
// It returns ErrCorrupt, or an error of r. Check reads nothing behind the section.
func Check(id ID, r io.Reader, n int64) error {
	switch {
	case id == Split:
		return checkSplit(r, n)
	case id.Lossy():
		return checkLossy(id, r, n)
	}
	return corrupt("%v is not checked block by block", id)
}

func checkSplit(r io.Reader, n int64) error {
	header := make([]byte, splitHeaderBytes)
	if err := fill(r, header); err != nil {
		return err
	}
	s, bases, err := readSplit(header, n)
	if err != nil {
		return err
	}
	s.bases = make([]byte, bases)
	if err := fill(r, s.bases); err != nil {
		return err
	}
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	return checkBlocks(r, n, s.block(), s.planes, func(stored, block []byte) (int, error) { return sc.decodeBlock(stored, block, s) })
}

func checkLossy(id ID, r io.Reader, n int64) error {
	header := make([]byte, lossyHeaderBytes)
	if err := fill(r, header); err != nil {
		return err
	}
	l, centers, err := readLossy(id, header, n)
	if err != nil {
		return err
	}
	l.centers = make([]byte, centers)
	if err := fill(r, l.centers); err != nil {
		return err
	}
	sc := lossyScratches.Get().(*lossyScratch)
	defer lossyScratches.Put(sc)
	if err := sc.readCenters(l); err != nil {
		return err
	}
	return checkBlocks(r, n, l.block(), l.planes, func(stored, block []byte) (int, error) { return sc.decodeBlock(stored, block, l) })
}

// decoder fills a block of rows, and returns its size in stored.
type decoder func(stored, block []byte) (size int, err error)

// checkBlocks reads and decodes the blocks of n decoded bytes. planes returns the sizes of the planes of
// a block of some bytes.
func checkBlocks(r io.Reader, n int64, blockBytes int, planes func(n int) []int, decode decoder) error {
	block := make([]byte, min(n, int64(blockBytes)))
	sizes := planes(len(block))
	most := 4 * len(sizes) // of a block whose planes are raw
	for _, size := range sizes {
		most += size
	}
	buf := make([]byte, most)
	for ; n > 0; n -= int64(len(block)) {
		block = block[:min(n, int64(len(block)))]
		size, err := readBlock(r, buf, planes(len(block)))
		if err != nil {
			return err
		}
		if _, err := decode(buf[:size], block); err != nil {
			return err
		}
	}
	return nil
}

// readBlock reads a block with planes of at most these sizes into buf and returns its size.
func readBlock(r io.Reader, buf []byte, planes []int) (size int, err error) {
	size = 4 * len(planes)
	if err := fill(r, buf[:size]); err != nil {
		return 0, err
	}
	for i, most := range planes {
		length := int(binary.LittleEndian.Uint32(buf[4*i:]) >> 2)
		if length > most {
			return 0, corrupt("a plane of %d bytes for %d", length, most)
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
