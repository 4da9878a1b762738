package diskstore

import (
	"context"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

/*
A lossy page stands for the exact page with the same key. Options.Cold makes pages lossy when they
move down; the remote tier then has the lossy file instead of an exact copy. A lossy file has
another fingerprint in its name and its header (pagefile.ColdFingerprint), so that a look-up for
exact pages never finds one. Parent and key are those of the exact page: one chain leads over pages
of both kinds.

A lossy page is never made lossy again. It moves up, and down again, as it is.
*/

// ColdTypes are the encodings of pages that move down: encoding.Q8_0, encoding.Q4_0 or
// encoding.Int4 for K and for V. encoding.Raw, the zero value, keeps K or V lossless.
type ColdTypes struct{ K, V encoding.ID }

// on reports whether pages are made lossy.
func (c ColdTypes) on() bool { return c.K.Lossy() || c.V.Lossy() }

func (c ColdTypes) valid() bool {
	return (c.K.Lossy() || c.K == encoding.Raw) && (c.V.Lossy() || c.V == encoding.Raw)
}

// coldExpandMost bounds the memory of making a page lossy by the file's length: rows that lossless
// encodings make smaller than that part become no smaller in a lossy one.
const coldExpandMost = 8

// coldOf returns how a local page becomes lossy when it moves down, and false for a page that
// moves down as it is: rows of other fingerprints may be of any type.
func (s *Store) coldOf(h *pagefile.Header) (pagefile.Cold, bool) {
	how := pagefile.Cold{K: s.opt.Cold.K, V: s.opt.Cold.V, Compress: s.encoder(h.Key) != nil}
	return how, s.opt.Cold.on() && h.Fingerprint == s.opt.Fingerprint && !h.Lossy() &&
		int64(h.Layout.Size()) <= coldExpandMost*h.FileBytes
}

// makeCold returns the lossy file of a local page. The result is nil, for an exact copy, when the
// lossy file would take as much disk space, and when it cannot be made: of a damaged page, for
// example, which the copy then finds. The error is that of ctx.
func (s *Store) makeCold(ctx context.Context, info tier.Info, how pagefile.Cold) (*pagefile.Encoded, error) {
	blob, err := s.disk.Open(ctx, info.Name)
	if err != nil {
		return nil, ctx.Err()
	}
	defer blob.Close()
	h, err := pagefile.ReadHeader(ctx, blob)
	if err != nil || h.CheckName(info.Name) != nil {
		return nil, ctx.Err()
	}
	if _, ok := s.coldOf(h); !ok {
		return nil, ctx.Err()
	}
	e, err := pagefile.EncodeCold(ctx, blob, h, s.codec, how)
	if err != nil {
		s.log.Debug("kv page moves down exact, it could not be made lossy", "page", info.Key.String(), "error", err)
		return nil, ctx.Err()
	}
	if !e.Header.Lossy() || pagefile.AlignUp(e.Header.FileBytes) >= pagefile.AlignUp(blob.Info().Bytes) {
		return nil, nil
	}
	return e, nil
}
