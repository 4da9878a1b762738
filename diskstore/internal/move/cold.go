package move

import (
	"context"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// coldExpandMost bounds the memory of making a page lossy by the file's length: rows that lossless
// encodings make smaller than that part become no smaller in a lossy one.
const coldExpandMost = 8

// coldOf returns how a local page becomes lossy when it moves down, and false for a page that
// moves down as it is: rows of other fingerprints may be of any type.
func (b *Down) coldOf(h *pagefile.Header) (pagefile.Cold, bool) {
	return b.Cold, b.opt.Pages.Cold && h.Fingerprint == b.opt.Pages.Exact && !h.Lossy() &&
		int64(h.Layout.Size()) <= coldExpandMost*h.FileBytes
}

// makeCold returns the lossy file of a local page. The result is nil, for an exact copy, when the
// lossy file would take as much disk space, and when it cannot be made: of a damaged page, for
// example, which the copy then finds. The error is that of ctx.
func (b *Down) makeCold(ctx context.Context, info tier.Info, how pagefile.Cold) (*pagefile.Encoded, error) {
	blob, err := b.opt.Local.Tier.Open(ctx, info.Name, false)
	if err != nil {
		return nil, ctx.Err()
	}
	defer blob.Close()
	h, err := pagefile.ReadHeader(ctx, blob)
	if err != nil || h.CheckName(info.Name) != nil {
		return nil, ctx.Err()
	}
	if _, ok := b.coldOf(h); !ok {
		return nil, ctx.Err()
	}
	e, err := pagefile.EncodeCold(ctx, blob, h, b.opt.Codec, how)
	if err != nil {
		b.opt.Log.Debug("kv page moves down exact, it could not be made lossy", "page", info.Key.String(), "error", err)
		return nil, ctx.Err()
	}
	if !e.Header.Lossy() || pagefile.AlignUp(e.Header.FileBytes) >= pagefile.AlignUp(blob.Info().Bytes) {
		return nil, nil
	}
	return e, nil
}
