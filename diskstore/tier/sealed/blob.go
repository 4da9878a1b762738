package sealed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// readChunks is the number of chunks that are read at once: those that any range of pagefile.StepBytes touches.
const readChunks = pagefile.StepBytes/chunkBytes + 1

// buffers are for reads of chunks.
var buffers = sync.Pool{New: func() any { p := make([]byte, readChunks*sealedChunk); return &p }}

// blob is a sealed file open for reading. Damage is an error of ReadAt, and not of Open: then the caller knows
// which file is damaged.
type blob struct {
	inner   tier.Blob
	info    tier.Info
	sealer  *sealer
	first   []byte // the first chunk, plain
	damaged error
}

// Open looks for the file of each key.
func (t *sealedTier) Open(ctx context.Context, name pagefile.Name, anew bool) (tier.Blob, error) {
	for _, k := range t.keys {
		b, err := t.open(ctx, k, name, anew)
		if err == nil {
			return b, nil
		}
		if !errors.Is(err, tier.ErrNotFound) {
			return nil, err
		}
	}
	return nil, tier.ErrNotFound
}

func (t *sealedTier) open(ctx context.Context, k *key, name pagefile.Name, anew bool) (*blob, error) {
	inner, err := t.inner.Open(ctx, k.name(name), anew)
	if err != nil {
		return nil, err
	}
	b := &blob{inner: inner, info: opened(inner.Info(), name)}
	if err := b.readFirst(ctx, k); errors.Is(err, pagefile.ErrDamaged) {
		b.damaged = fmt.Errorf("sealed file of %v: %w", name.Key, err)
	} else if err != nil {
		inner.Close()
		return nil, err
	}
	return b, nil
}

// readFirst reads the header and the first chunk at once, because callers read the beginning of a file first.
func (b *blob) readFirst(ctx context.Context, k *key) error {
	size := b.inner.Size()
	if _, whole := plainLen(size); !whole {
		return pagefile.Damaged("no sealed file is %d bytes", size)
	}
	head := make([]byte, min(size, int64(headerBytes+sealedChunk)))
	if err := pagefile.ReadFull(ctx, b.inner, head, 0); err != nil {
		return err
	}
	b.sealer = k.sealer([headerBytes]byte(head), fileName(b.info.Name))
	var err error
	b.first, err = b.sealer.open(0, b.info.Bytes <= chunkBytes, head[headerBytes:])
	return err
}

func (b *blob) Info() tier.Info { return b.info }

func (b *blob) Size() int64 { return b.info.Bytes }

func (b *blob) Close() { b.inner.Close() }

func (b *blob) ReadAt(ctx context.Context, p []byte, off int64) error {
	switch {
	case b.damaged != nil:
		return b.damaged
	case off < 0 || off > b.info.Bytes || int64(len(p)) > b.info.Bytes-off:
		return io.ErrUnexpectedEOF
	}
	for len(p) > 0 {
		if off < int64(len(b.first)) {
			n := copy(p, b.first[off:])
			p, off = p[n:], off+int64(n)
			continue
		}
		n, err := b.readChunks(ctx, p, off)
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// readChunks fills the beginning of p, as far as it goes with readChunks chunks.
func (b *blob) readChunks(ctx context.Context, p []byte, off int64) (int, error) {
	number := off / chunkBytes
	end := min((off+int64(len(p))+chunkBytes-1)/chunkBytes, number+readChunks) // the chunk after the last
	from := int64(headerBytes) + number*sealedChunk
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	rest := (*buf)[:min(int64(headerBytes)+end*sealedChunk, sealedLen(b.info.Bytes))-from]
	if err := pagefile.ReadFull(ctx, b.inner, rest, from); err != nil {
		return 0, err
	}
	n, skip := 0, off%chunkBytes
	for ; number < end; number++ {
		size := min(len(rest), sealedChunk)
		plain, err := b.sealer.open(number, (number+1)*chunkBytes >= b.info.Bytes, rest[:size])
		if err != nil {
			return 0, err
		}
		n += copy(p[n:], plain[skip:])
		rest, skip = rest[size:], 0
	}
	return n, nil
}
