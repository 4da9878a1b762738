package diskstore

import (
	"context"
	"errors"

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

// coldName is the name of the lossy page that stands for an exact one.
func coldName(name pagefile.Name) pagefile.Name {
	name.Fingerprint = pagefile.ColdFingerprint(name.Fingerprint)
	return name
}

// checkPlace returns pagefile.ErrMismatch unless a page belongs at a name, and is lossy exactly where the
// name is that of this store's lossy pages: a look-up of exact pages never gives lossy rows.
func (s *Store) checkPlace(h *pagefile.Header, name pagefile.Name) error {
	if err := h.CheckName(name); err != nil {
		return err
	}
	if lossy := name.Fingerprint == s.cold; h.Lossy() != lossy {
		return pagefile.Mismatch("page is lossy: %t, want %t", h.Lossy(), lossy)
	}
	return nil
}

// exactName is the name of the exact page for which a page of this store stands.
func (s *Store) exactName(name pagefile.Name) pagefile.Name {
	name.Fingerprint = s.opt.Fingerprint
	return name
}

// fingerprints are those of this store's pages: exact ones and, with Options.Cold, lossy ones.
func (s *Store) fingerprints() []pagefile.Key {
	if !s.opt.Cold.on() {
		return []pagefile.Key{s.opt.Fingerprint}
	}
	return []pagefile.Key{s.opt.Fingerprint, s.cold}
}

// nameOf is the name of the page with a header.
func nameOf(h *pagefile.Header) pagefile.Name {
	name := pagefile.Name{Fingerprint: h.Fingerprint, Class: pagefile.ClassPage, Key: h.Key}
	if h.Tail() {
		name.Class = pagefile.ClassTail
	}
	return name
}

// coldOf returns how a local page becomes lossy when it moves down, and false for a page that
// moves down as it is: rows of other fingerprints may be of any type.
func (s *Store) coldOf(h *pagefile.Header) (pagefile.Cold, bool) {
	how := pagefile.Cold{K: s.opt.Cold.K, V: s.opt.Cold.V, Compress: s.opt.Compress}
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

// statPage describes a tier's file of a full page: the exact one or, with Options.Cold, without
// that the lossy one.
func (lv *level) statPage(ctx context.Context, key pagefile.Key) (tier.Info, error) {
	info, err := lv.tier.Stat(ctx, lv.s.pageName(key))
	if lv.s.opt.Cold.on() && errors.Is(err, tier.ErrNotFound) {
		return lv.tier.Stat(ctx, coldName(lv.s.pageName(key)))
	}
	return info, err
}
