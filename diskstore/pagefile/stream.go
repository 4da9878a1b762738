package pagefile

import (
	"context"
	"hash/crc32"
)

// StepBytes is the largest piece in which files are copied and in which an
// isolated tier is read and written.
const StepBytes = 1 << 20

// StreamPage reads blob once from beginning to end in steps, checks every byte,
// and hands each step to write when that is not nil. The last step is handed on
// only after the whole file has been found good.
func StreamPage(ctx context.Context, blob Source, write func(p []byte) error) (*Header, error) {
	h, err := ReadHeader(ctx, blob)
	if err != nil {
		return nil, err
	}
	v := verifier{h: h, head: h.Encode()}
	buf := make([]byte, min(StepBytes, h.FileBytes))
	for off := int64(0); off < h.FileBytes; {
		p := buf[:min(int64(len(buf)), h.FileBytes-off)]
		if err := ReadFull(ctx, blob, p, off); err != nil {
			return nil, err
		}
		if err := v.feed(p); err != nil {
			return nil, err
		}
		if write != nil {
			if err := write(p); err != nil {
				return nil, err
			}
		}
		off += int64(len(p))
	}
	return h, nil
}

// verifier checks a file whose header has been decoded, fed in order.
type verifier struct {
	h       *Header
	head    []byte // what is left of the header region, to be seen again
	off     int64  // next byte to check
	section int    // the section off is in or after
	crc     uint32 // of that section so far
	foot    []byte
}

// feed checks the next bytes of the file.
func (v *verifier) feed(p []byte) error {
	for len(p) > 0 {
		n, err := v.step(p)
		if err != nil {
			return err
		}
		p = p[n:]
		v.off += int64(n)
	}
	return nil
}

// step checks the beginning of p, all of it in one region, and returns how much.
func (v *verifier) step(p []byte) (int, error) {
	if n := min(len(v.head), len(p)); n > 0 {
		if string(p[:n]) != string(v.head[:n]) {
			return 0, Damaged("header changed between two reads")
		}
		v.head = v.head[n:]
		return n, nil
	}
	if v.section == len(v.h.Sections) {
		v.foot = append(v.foot, p...)
		if len(v.foot) == FooterBytes && string(v.foot) != string(v.h.Footer()) {
			return 0, Damaged("footer does not match the header")
		}
		return len(p), nil
	}
	s := &v.h.Sections[v.section]
	if end := s.Offset + s.Stored; v.off < end {
		p = p[:min(int64(len(p)), end-v.off)]
		v.crc = crc32.Update(v.crc, castagnoli, p)
		if v.off+int64(len(p)) == end {
			if v.crc != s.CRC {
				return 0, Damaged("section %d (group %d layer %d %v): checksum is %08x, want %08x",
					v.section, s.Group, s.Layer, s.Kind, v.crc, s.CRC)
			}
			v.nextIfAligned(end)
		}
		return len(p), nil
	}
	end := AlignUp(s.Offset + s.Stored)
	p = p[:min(int64(len(p)), end-v.off)]
	if !allZero(p) {
		return 0, Damaged("padding after section %d is not zero", v.section)
	}
	v.nextIfAligned(v.off + int64(len(p)))
	return len(p), nil
}

// nextIfAligned moves on to the next section when offset off, at or after the
// end of this one, is where the next begins.
func (v *verifier) nextIfAligned(off int64) {
	if off == AlignUp(off) {
		v.section++
		v.crc = 0
	}
}
