package diskstore

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/kvtier/kvtier/internal/vfs"
)

// stepBytes is the largest piece in which files are copied and in which an
// isolated tier is read and written.
const stepBytes = 1 << 20

// InspectFile reads and checks the header of a page file, for tools. It returns
// ErrNotFound, ErrDamaged, ErrMismatch for a newer schema, or an error of the
// filesystem.
func InspectFile(fs vfs.FS, path string) (*Header, error) {
	blob, err := openFileBlob(fs, path, Name{})
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", path, err)
	}
	defer blob.Close()
	h, err := readHeader(context.Background(), blob)
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", path, err)
	}
	return h, nil
}

// VerifyFile reads a whole page file and checks every byte as Read does, except
// that it compares checksums of compressed sections without decompressing
// them. It needs little memory whatever the file claims. Errors are those of
// InspectFile.
func VerifyFile(ctx context.Context, fs vfs.FS, path string) (*Header, error) {
	blob, err := openFileBlob(fs, path, Name{})
	if err != nil {
		return nil, fmt.Errorf("verify %s: %w", path, err)
	}
	defer blob.Close()
	h, err := streamPage(ctx, blob, nil)
	if err != nil {
		return nil, fmt.Errorf("verify %s: %w", path, err)
	}
	return h, nil
}

// streamPage reads blob once from beginning to end in steps, checks every byte,
// and hands each step to write when that is not nil. The last step is handed on
// only after the whole file has been found good.
func streamPage(ctx context.Context, blob Blob, write func(p []byte) error) (*Header, error) {
	h, err := readHeader(ctx, blob)
	if err != nil {
		return nil, err
	}
	v := verifier{h: h, head: h.encode()}
	buf := make([]byte, min(stepBytes, h.FileBytes))
	for off := int64(0); off < h.FileBytes; {
		p := buf[:min(int64(len(buf)), h.FileBytes-off)]
		if err := readFull(ctx, blob, p, off); err != nil {
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
			return 0, damaged("header changed between two reads")
		}
		v.head = v.head[n:]
		return n, nil
	}
	if v.section == len(v.h.Sections) {
		v.foot = append(v.foot, p...)
		if len(v.foot) == footerBytes && string(v.foot) != string(v.h.footer()) {
			return 0, damaged("footer does not match the header")
		}
		return len(p), nil
	}
	s := &v.h.Sections[v.section]
	if end := s.Offset + s.Stored; v.off < end {
		p = p[:min(int64(len(p)), end-v.off)]
		v.crc = crc32.Update(v.crc, castagnoli, p)
		if v.off+int64(len(p)) == end {
			if v.crc != s.CRC {
				return 0, damaged("section %d (group %d layer %d %v): checksum is %08x, want %08x",
					v.section, s.Group, s.Layer, s.Kind, v.crc, s.CRC)
			}
			v.nextIfAligned(end)
		}
		return len(p), nil
	}
	end := alignUp(s.Offset + s.Stored)
	p = p[:min(int64(len(p)), end-v.off)]
	if !allZero(p) {
		return 0, damaged("padding after section %d is not zero", v.section)
	}
	v.nextIfAligned(v.off + int64(len(p)))
	return len(p), nil
}

// nextIfAligned moves on to the next section when offset off, at or after the
// end of this one, is where the next begins.
func (v *verifier) nextIfAligned(off int64) {
	if off == alignUp(off) {
		v.section++
		v.crc = 0
	}
}

// copyPage copies a page from one tier to another, durably and with every byte
// checked; commit is called to finish the copy. It returns ErrDamaged or
// ErrMismatch, without storing anything, when src does not hold a good page of
// that name, also when it is read past the cache.
func copyPage(ctx context.Context, src, dst Tier, name Name, room *room, commit func(Upload) error) error {
	err := copyOnce(ctx, src.Open, src, dst, name, room, commit)
	if side := new(copyError); errors.As(err, &side) && side.side == src && doubtful(err) {
		return copyOnce(ctx, src.Reopen, src, dst, name, room, commit)
	}
	return err
}

// copyOnce is copyPage with the page opened by open, which is a method of src.
func copyOnce(ctx context.Context, open func(context.Context, Name) (Blob, error), src, dst Tier, name Name, room *room, commit func(Upload) error) error {
	blob, err := open(ctx, name)
	if err != nil {
		return &copyError{side: src, err: err}
	}
	defer blob.Close()
	up, err := dst.Create(ctx, name)
	if err != nil {
		return &copyError{side: dst, err: err}
	}
	defer func() { room.wasted(up.Written()) }() // but not where it has become a file
	defer up.Abort()
	var writeErr error
	h, err := streamPage(ctx, blob, func(p []byte) error {
		writeErr = up.Write(ctx, p)
		return writeErr
	})
	if err == nil {
		err = h.checkName(name)
	}
	if writeErr != nil {
		return &copyError{side: dst, err: writeErr}
	}
	if err != nil {
		return &copyError{side: src, err: err, read: blob.Info()}
	}
	if err := commit(up); err != nil {
		return &copyError{side: dst, err: err}
	}
	return nil
}

// copyError says which side of a copy failed.
type copyError struct {
	side Tier
	err  error
	read Info // the file that was read and is no good, if that is known
}

func (e *copyError) Error() string { return e.err.Error() }
func (e *copyError) Unwrap() error { return e.err }

// judged returns the file that a copy found to be no good, which may have been
// written or touched since info was made of it; info where it does not say.
func judged(err error, info Info) Info {
	var side *copyError
	if errors.As(err, &side) && side.read.Name == info.Name {
		return side.read
	}
	return info
}
