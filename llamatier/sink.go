package llamatier

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"sync"

	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/slotfile"
)

// headMax bounds the bytes of a file before the first row, which a sink keeps in memory.
const headMax = 64 << 20

// sink is a stream into which llama-server saves a slot. Rows of pages that are stored are
// dropped; all other bytes go to a file, at their offsets.
type sink struct {
	form   form
	files  *files
	stored []int32 // tokens of pages that are stored, the first of the slot
	saved  int64   // bytes that the slot's file may have

	mu      sync.Mutex
	size    int64  // bytes that were written
	head    []byte // all of them, before it is known where rows are
	need    int64  // of them, to know more
	filter  *llamastate.Filter
	dropped positions
	file    *slotfile.File // nil before it is known where rows are
	rows    io.WriterAt    // of file
	failed  error          // the first, of which llama-server knows only that there was one
}

// Size implements slotfile.Sink.
func (k *sink) Size() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.size
}

// Empty implements slotfile.Sink.
func (k *sink) Empty() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.size > 0 {
		return errors.New("llama-server has written to it")
	}
	return nil
}

// Close implements slotfile.Sink.
func (k *sink) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file == nil {
		return nil
	}
	return k.file.Close()
}

// WriteAt implements slotfile.Sink.
func (k *sink) WriteAt(p []byte, off int64) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var err error
	if off != k.size {
		err = because(CauseFormat, "llama-server does not write in order")
	} else if k.file != nil {
		err = k.keepLocked(p, off)
	} else if k.head = append(k.head, p...); len(k.head) <= headMax {
		err = k.beginLocked()
	} else {
		err = because(CauseFormat, "no row begins in its first bytes")
	}
	if err != nil {
		k.failed = cmp.Or(k.failed, err)
		return 0, err
	}
	k.size += int64(len(p))
	return len(p), nil
}

func (k *sink) failure() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failed
}

// keepLocked writes the bytes that are not dropped.
func (k *sink) keepLocked(p []byte, off int64) error {
	write := func(p []byte, off int64) error {
		_, err := k.rows.WriteAt(p, off)
		return err
	}
	if k.filter == nil {
		return write(p, off)
	}
	return k.filter.Each(p, off, write)
}

// beginLocked makes the file, as soon as it is known where rows are.
func (k *sink) beginLocked() error {
	if int64(len(k.head)) < k.need {
		return nil
	}
	b, need, err := k.form.shape.Begin(bytes.NewReader(k.head), int64(len(k.head)))
	if k.need = need; err == nil && b == nil {
		return nil // more must be written
	}
	size := int64(len(k.head)) + k.saved
	if err == nil { // otherwise it has media, or Shape.Open says later why not
		page := k.form.pageTokens
		if end := min(commonPrefix(b.Tokens, k.stored), len(b.Tokens)-1) / page * page; end > page {
			k.dropped = positions{page, end}
			k.filter = b.Without(page, end)
			size -= k.filter.Dropped
		}
	}
	return k.openLocked(max(0, size))
}

// openLocked makes the file, with about size bytes, and writes its head.
func (k *sink) openLocked(size int64) error {
	f, err := k.files.create(size)
	if err != nil {
		return err
	}
	k.file, k.rows = f, k.files.disk.writer(f)
	head := k.head
	k.head = nil
	return k.keepLocked(head, 0)
}

// finish returns the file of a slot that was saved.
func (k *sink) finish() (*slotfile.File, positions, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file == nil {
		if err := k.openLocked(int64(len(k.head))); err != nil {
			return nil, k.dropped, err
		}
	}
	f := k.file
	k.file = nil
	if err := k.files.disk.do(k.files.disk.Patience.Page, func() error { return f.Truncate(k.size) }); err != nil {
		k.files.drop(f)
		return nil, k.dropped, err
	}
	return f, k.dropped, nil
}
