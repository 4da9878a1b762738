package move

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// keptMost bounds the bytes of pages that are kept between their reading and their copying, of one store. Pages
// beyond it are read from the remote tier a second time.
const keptMost = 64 << 20

// Kept is a page's file that is read, with the bytes that were read, so that a copy to the local tier need not ask
// the remote one again. It is a pagefile.Source.
type Kept struct {
	tier.Blob
	kept  *atomic.Int64 // bytes of all Kept of a store
	bytes []byte        // of the file; nil keeps nothing

	mu   sync.Mutex
	read []span
}

// span is a range of bytes, [from, to).
type span struct{ from, to int64 }

// Keep keeps what is read of a file through the result, if there is room for it. The caller calls Request or Drop.
func (b *Mover) Keep(blob tier.Blob) *Kept {
	k := &Kept{Blob: blob, kept: &b.kept}
	if size := blob.Size(); size > 0 && size <= keptMost {
		if b.kept.Add(size) <= keptMost {
			k.bytes = make([]byte, size)
		} else {
			b.kept.Add(-size)
		}
	}
	return k
}

// ReadsAtOnce is that of the file.
func (k *Kept) ReadsAtOnce() int { return pagefile.ReadsAtOnce(k.Blob) }

// ReadAt reads from the file.
func (k *Kept) ReadAt(ctx context.Context, p []byte, off int64) error {
	err := k.Blob.ReadAt(ctx, p, off)
	if k.bytes != nil && err == nil && off >= 0 && off+int64(len(p)) <= int64(len(k.bytes)) {
		k.mu.Lock()
		copy(k.bytes[off:], p)
		k.read = append(k.read, span{off, off + int64(len(p))})
		k.mu.Unlock()
	}
	return err
}

// Drop gives the room of the bytes back, once. Nothing is read meanwhile. A nil Kept has none.
func (k *Kept) Drop() {
	if k != nil && k.bytes != nil {
		k.kept.Add(-int64(len(k.bytes)))
		k.bytes = nil
	}
}

// whole reports whether all bytes were read.
func (k *Kept) whole() bool {
	if k == nil || k.bytes == nil {
		return false
	}
	slices.SortFunc(k.read, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	end := int64(0)
	for _, s := range k.read {
		if s.from > end {
			return false
		}
		end = max(end, s.to)
	}
	return end == int64(len(k.bytes))
}

// keptTier is a remote tier of which one page has been read.
type keptTier struct {
	tier.Tier
	kept *Kept
}

// Open opens the bytes that were read, or with anew the file.
func (t keptTier) Open(ctx context.Context, name pagefile.Name, anew bool) (tier.Blob, error) {
	if anew || name != t.kept.Info().Name || !t.kept.whole() {
		return t.Tier.Open(ctx, name, anew)
	}
	return keptBlob{t.kept}, nil
}

// keptBlob is a whole file in memory.
type keptBlob struct{ *Kept }

func (b keptBlob) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if off < 0 || off+int64(len(p)) > int64(len(b.bytes)) {
		return io.ErrUnexpectedEOF
	}
	copy(p, b.bytes[off:])
	return nil
}

func (keptBlob) ReadsAtOnce() int { return 1 }

func (keptBlob) Close() {}
