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
	block := make([]byte, min(n, int64(s.block())))
	buf := make([]byte, mostStored(s.planes(len(block))))
	for ; n > 0; n -= int64(len(block)) {
		block = block[:min(n, int64(len(block)))]
		size, err := readBlock(r, buf, s.planes(len(block)))
		if err != nil {
			return err
		}
		if _, err := sc.decodeBlock(buf[:size], block, s); err != nil {
			return err
		}
	}
	return nil
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
	block := make([]byte, min(n, int64(2*l.block())))
	buf := make([]byte, mostStored(l.planes(len(block)/2)))
	for ; n > 0; n -= int64(len(block)) {
		block = block[:min(n, int64(len(block)))]
		size, err := readBlock(r, buf, l.planes(len(block)/2))
		if err != nil {
			return err
		}
		if _, err := sc.decodeBlock(buf[:size], block, l); err != nil {
			return err
		}
	}
	return nil
}

// mostStored returns the bytes of a block whose planes are raw.
func mostStored(planes []int) int {
	size := 4 * len(planes)
	for _, n := range planes {
		size += n
	}
	return size
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
