package diskstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/checked"
	"github.com/kvtier/kvtier/diskstore/internal/move"
	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// ReadOption is an option of reads.
type ReadOption int

// Gently reads on one processor and leaves the others to slots that compute. The rows read are
// the same.
const Gently ReadOption = 1

// codecFor returns the codec of a read.
func codecFor(codec *pagefile.Codec, how []ReadOption) *pagefile.Codec {
	if slices.Contains(how, Gently) {
		return codec.Gently()
	}
	return codec
}

// Read fills buf with sections of a page, laid out by layout: all sections of the page, or
// some of them in the same order. tokens are the ref.Tokens tokens that the caller expects at
// ref.Start; layout is for ref.Stored tokens; buf has layout.Size() bytes. Of a tail with
// ref.Tokens < ref.Stored only the first ref.Tokens rows of each section belong to the
// caller's sequence; sections that are not rows belong to another sequence.
//
// Header, fingerprint, key, parent, position, tokens, footer, and every byte of the read
// sections are checked before Read returns nil. A page in memory was checked when it was
// added. Of a Lossy ref, the rows are those that its encoding gives back. After an error buf is
// undefined. If the tier of ref cannot return the page, Read
// tries the other tiers.
//
// Read returns tier.ErrNotFound; pagefile.ErrDamaged, with the file in quarantine or not used
// again; pagefile.ErrMismatch for a well-formed page other than the described one;
// pagefile.ErrInvalidPage for arguments that do not fit together; tier.ErrTierDown,
// tier.ErrTierTimeout, tier.ErrClosed, ctx's error or an error of the filesystem. After any of them
// the caller computes the page.
func (s *Store) Read(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, buf []byte, how ...ReadOption) error {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	defer s.traffic.Enter()()
	return s.reader.fill(ctx, ref, tokens, layout, buf, how)
}

// reader reads pages that a look-up found.
type reader struct {
	pages      *names.Pages
	pageTokens int
	codec      *pagefile.Codec
	tiers      levels
	ram        *memory
	chains     *recency.Chains
	down       *move.Down // nil without a remote tier, as up
	up         *move.Up
	behind     *work.Queue // of touches of remote pages
	now        func() time.Time
	counts     *counters
	ahead      readAhead

	sharing sharing
	whole   sync.Pool // *[]byte for whole pages on their way through memory
}

// fill does as Store.Read.
func (r *reader) fill(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, buf []byte, how []ReadOption) error {
	if err := checkRead(ref, tokens, layout, len(buf)); err != nil {
		return err
	}
	if r.fromRAM(ctx, ref, tokens, layout, buf, false) {
		return nil
	}
	other, end := r.sharing.join(ref.name(r.pages), ref, tokens, layout, buf)
	if other != nil {
		if other.copyTo(ctx, buf) {
			r.counts.hits.Add(1)
			r.counts.sharedHits.Add(1)
			r.counts.readBytes.Add(uint64(len(buf)))
			return nil
		}
		end = func(bool) {}
	}
	page, err := r.read(ctx, ref, tokens, layout, into(codecFor(r.codec, how), buf))
	end(err == nil)
	if err != nil {
		return err
	}
	page.blob.Close()
	r.keep(page, layout, buf)
	return nil
}

// keep keeps a page in memory whose sections were all read.
func (r *reader) keep(page verified, layout pagefile.Layout, buf []byte) {
	if layout.Equal(page.header.Layout) {
		r.ram.keep(page.level, page.blob.Info(), page.header, buf, page.level.name)
	}
}

// checkRead returns pagefile.ErrInvalidPage for arguments of Read that do not fit together.
func checkRead(ref Ref, tokens []int32, layout pagefile.Layout, bytes int) error {
	if len(tokens) != ref.Tokens || ref.Tokens < 1 || layout.Tokens() != ref.Stored || ref.Stored < ref.Tokens || bytes != layout.Size() {
		return fmt.Errorf("read page %v: %d of %d tokens wanted, have %d tokens, a layout for %d and %d bytes for %d: %w",
			ref.Key, ref.Tokens, ref.Stored, len(tokens), layout.Tokens(), bytes, layout.Size(), pagefile.ErrInvalidPage)
	}
	return nil
}

// load reads the wanted sections of a page's open file, and checks them.
type load func(ctx context.Context, blob tier.Blob, h *pagefile.Header, sel pagefile.Selection) error

// into loads sections into buf.
func into(codec *pagefile.Codec, buf []byte) load {
	return func(ctx context.Context, blob tier.Blob, h *pagefile.Header, sel pagefile.Selection) error {
		return pagefile.ReadPayload(ctx, blob, h, sel, codec, buf)
	}
}

// verified is a page's open file whose wanted sections were checked.
type verified struct {
	level  *level
	blob   tier.Blob
	header *pagefile.Header
}

// read reads from the tiers and returns the open file. The caller closes the file.
func (r *reader) read(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, load load) (verified, error) {
	var worst error
	for _, lv := range r.tiers.from(ref.Tier) {
		page, err := r.readFrom(ctx, lv, ref, tokens, layout, load)
		if err == nil {
			r.counts.hits.Add(1)
			lv.hit(page.header.Fingerprint)
			lv.counts.hits.Add(1)
			r.ahead.used(ref.name(r.pages), r.ram.off())
			r.counts.readBytes.Add(uint64(layout.Size()))
			return page, nil
		}
		// Of two failures, one other than tier.ErrNotFound tells the caller more.
		if worst == nil || errors.Is(worst, tier.ErrNotFound) {
			worst = err
		}
		if ctx.Err() != nil || errors.Is(err, pagefile.ErrMismatch) || checked.NotUsed(err) {
			break
		}
	}
	if errors.Is(worst, tier.ErrNotFound) && !checked.NotUsed(worst) {
		r.counts.misses.Add(1)
	}
	return verified{}, fmt.Errorf("read page %v: %w", ref.Key, worst)
}

// readFrom reads a page from one tier.
func (r *reader) readFrom(ctx context.Context, lv *level, ref Ref, tokens []int32, layout pagefile.Layout, load load) (verified, error) {
	var header *pagefile.Header
	blob, err := lv.checked.Open(ctx, ref.name(r.pages), func(blob tier.Blob) (err error) {
		header, err = r.readBlob(ctx, blob, ref, tokens, layout, load)
		return err
	})
	if err != nil {
		return verified{}, err
	}
	info := blob.Info()
	if lv.far {
		r.up.Request(info, ref.place())
	}
	r.touch(ctx, lv, ref, info.Used)
	return verified{level: lv, blob: blob, header: header}, nil
}

// readBlob checks an open file against the arguments and loads the wanted sections.
func (r *reader) readBlob(ctx context.Context, blob tier.Blob, ref Ref, tokens []int32, layout pagefile.Layout, load load) (*pagefile.Header, error) {
	h, err := pagefile.ReadHeader(ctx, blob)
	if err != nil {
		return nil, err
	}
	if err := r.pages.CheckPlace(h, blob.Info().Name); err != nil {
		return nil, err
	}
	if err := checkWanted(h, ref, r.pageTokens, tokens, layout); err != nil {
		return nil, err
	}
	sel, _ := h.Select(layout)
	return h, load(ctx, blob, h, sel)
}

// checkWanted returns pagefile.ErrMismatch unless h is the page that the caller of Read describes.
func checkWanted(h *pagefile.Header, ref Ref, pageTokens int, tokens []int32, layout pagefile.Layout) error {
	switch {
	case h.Parent != ref.Parent:
		return pagefile.Mismatch("parent is %v, want %v", h.Parent, ref.Parent)
	case h.Start != ref.Start:
		return pagefile.Mismatch("page starts at token %d, want %d", h.Start, ref.Start)
	case h.PageTokens != pageTokens:
		return pagefile.Mismatch("page size is %d tokens, want %d", h.PageTokens, pageTokens)
	case len(h.Tokens) != ref.Stored:
		return pagefile.Mismatch("page has %d tokens, want %d", len(h.Tokens), ref.Stored)
	case !slices.Equal(h.Tokens[:len(tokens)], tokens):
		return pagefile.Mismatch("tokens differ")
	}
	if _, ok := layout.Within(h.Layout); !ok {
		return pagefile.Mismatch("sections differ")
	}
	return nil
}
