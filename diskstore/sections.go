package diskstore

import (
	"context"

	"github.com/kvtier/kvtier/diskstore/internal/checked"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Use receives the rows of section i of a layout, which it does not keep. Calls may run at the
// same time. After an error of Use the rest of the page is not read.
type Use func(i int, rows []byte) error

// ReadSections does as Read, but passes each section to use as soon as the section is checked,
// instead of filling a buffer: memory for a few pieces is enough, and a piece is used while it is
// in the processor's cache. Sections come in any order. A section may come several times, when
// the page is read again or from another tier; the last time counts.
//
// The page is good only if ReadSections returns nil: any section may have been passed on before
// an error. Besides the errors of Read, ReadSections returns that of use. After ReadSections has
// returned, use is not called.
//
// With [Options.RAM] a page comes whole into memory first, where it is kept.
func (s *Store) ReadSections(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, use Use, how ...ReadOption) error {
	if !s.ram.off() {
		buf := s.reader.takeWhole(layout)
		defer s.reader.putWhole(buf)
		if err := s.Read(ctx, ref, tokens, layout, *buf, how...); err != nil {
			return err
		}
		return use.all(layout, *buf)
	}
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	defer s.traffic.Enter()()
	page, err := s.reader.readInto(ctx, ref, tokens, layout, use, how)
	if err != nil {
		return err
	}
	page.blob.Close()
	return nil
}

// readInto reads a page from the tiers, passes its sections to use, and returns the open file.
// The caller closes the file.
func (r *reader) readInto(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, use Use, how []ReadOption) (verified, error) {
	if err := checkRead(ref, tokens, layout, layout.Size()); err != nil {
		return verified{}, err
	}
	codec := codecFor(r.codec, how)
	return r.read(ctx, ref, tokens, layout, func(ctx context.Context, blob tier.Blob, h *pagefile.Header, sel pagefile.Selection) error {
		return pagefile.ReadSections(ctx, blob, h, sel, codec, func(i int, rows []byte) error {
			if err := use(i, rows); err != nil {
				return &checked.UseError{Err: err}
			}
			return nil
		})
	})
}

// all passes on the sections of a whole page.
func (u Use) all(layout pagefile.Layout, buf []byte) error {
	for i := range layout.Len() {
		if err := u(i, layout.Rows(buf, i)); err != nil {
			return err
		}
	}
	return nil
}

// takeWhole returns memory for a page, which the caller gives back with putWhole.
func (r *reader) takeWhole(layout pagefile.Layout) *[]byte {
	r.counts.wholeBytes.Add(int64(layout.Size()))
	if p, ok := r.whole.Get().(*[]byte); ok && cap(*p) >= layout.Size() {
		*p = (*p)[:layout.Size()]
		return p
	}
	buf := make([]byte, layout.Size())
	return &buf
}

func (r *reader) putWhole(buf *[]byte) {
	r.counts.wholeBytes.Add(-int64(len(*buf)))
	r.whole.Put(buf)
}
