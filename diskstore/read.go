package diskstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// ReadOption is an option of reads.
type ReadOption int

// Gently reads on one processor and leaves the others to slots that compute. The rows read are
// the same.
const Gently ReadOption = 1

// codecFor returns the codec of a read.
func (s *Store) codecFor(how []ReadOption) *pagefile.Codec {
	if slices.Contains(how, Gently) {
		return s.codec.Gently()
	}
	return s.codec
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
	if err := s.checkRead(ref, tokens, layout, len(buf)); err != nil {
		return err
	}
	if s.readRAM(ctx, ref, tokens, layout, buf, false) {
		return nil
	}
	other, end := s.sharing.join(s.refName(ref), ref, tokens, layout, buf)
	if other != nil {
		if other.copyTo(ctx, buf) {
			s.counts.hits.Add(1)
			s.counts.sharedHits.Add(1)
			s.counts.readBytes.Add(uint64(len(buf)))
			return nil
		}
		end = func(bool) {}
	}
	page, err := s.read(ctx, ref, tokens, layout, s.into(buf, how))
	end(err == nil)
	if err != nil {
		return err
	}
	page.blob.Close()
	s.keepRead(page, layout, buf)
	return nil
}

// keepRead keeps a page in memory whose sections were all read.
func (s *Store) keepRead(page verified, layout pagefile.Layout, buf []byte) {
	if layout.Equal(page.header.Layout) {
		page.level.keepInRAM(page.blob.Info(), page.header, buf, page.level.name)
	}
}

// checkRead returns pagefile.ErrInvalidPage for arguments of Read that do not fit together.
func (s *Store) checkRead(ref Ref, tokens []int32, layout pagefile.Layout, bytes int) error {
	if len(tokens) != ref.Tokens || ref.Tokens < 1 || layout.Tokens() != ref.Stored || ref.Stored < ref.Tokens || bytes != layout.Size() {
		return fmt.Errorf("read page %v: %d of %d tokens wanted, have %d tokens, a layout for %d and %d bytes for %d: %w",
			ref.Key, ref.Tokens, ref.Stored, len(tokens), layout.Tokens(), bytes, layout.Size(), pagefile.ErrInvalidPage)
	}
	return nil
}

// load reads the wanted sections of a page's open file, and checks them.
type load func(ctx context.Context, blob tier.Blob, h *pagefile.Header, sel pagefile.Selection) error

// into loads sections into buf.
func (s *Store) into(buf []byte, how []ReadOption) load {
	codec := s.codecFor(how)
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
func (s *Store) read(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, load load) (verified, error) {
	var worst error
	for _, lv := range s.levels(ref.Tier) {
		page, err := lv.readFrom(ctx, ref, tokens, layout, load)
		if err == nil {
			lv.hit(page.header.Fingerprint)
			lv.counts.hits.Add(1)
			s.ahead.used(s.refName(ref), s.ram == nil)
			s.counts.readBytes.Add(uint64(layout.Size()))
			return page, nil
		}
		// Of two failures, one other than tier.ErrNotFound tells the caller more.
		if worst == nil || errors.Is(worst, tier.ErrNotFound) {
			worst = err
		}
		if ctx.Err() != nil || errors.Is(err, pagefile.ErrMismatch) || notUsed(err) {
			break
		}
	}
	if errors.Is(worst, tier.ErrNotFound) && !notUsed(worst) {
		s.counts.misses.Add(1)
	}
	return verified{}, fmt.Errorf("read page %v: %w", ref.Key, worst)
}

// readFrom reads a page from one tier.
func (lv *level) readFrom(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, load load) (verified, error) {
	var header *pagefile.Header
	blob, err := lv.openChecked(ctx, lv.s.refName(ref), func(blob tier.Blob) (err error) {
		header, err = lv.s.readBlob(ctx, blob, ref, tokens, layout, load)
		return err
	})
	if err != nil {
		return verified{}, err
	}
	info := blob.Info()
	if lv == lv.s.remote {
		lv.s.requestPromotion(info, ref)
	}
	lv.touchRef(ctx, ref, info.Used)
	return verified{level: lv, blob: blob, header: header}, nil
}

// readBlob checks an open file against the arguments and loads the wanted sections.
func (s *Store) readBlob(ctx context.Context, blob tier.Blob, ref Ref, tokens []int32, layout pagefile.Layout, load load) (*pagefile.Header, error) {
	h, err := pagefile.ReadHeader(ctx, blob)
	if err != nil {
		return nil, err
	}
	if err := s.checkPlace(h, blob.Info().Name); err != nil {
		return nil, err
	}
	if err := checkWanted(h, ref, s.opt.PageTokens, tokens, layout); err != nil {
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

// condemn handles a file that could not be used because of err, also when read past the cache.
// A damaged file, or one that is not the page of its name, goes to quarantine, so that the
// page can be stored again. The file stays, and counts as not stored here, when quarantine is
// full or when this process has condemned so many files that the process is more likely to be
// wrong. A good page that only differs from the caller's description stays as well: the caller
// may be wrong.
func (lv *level) condemn(ctx context.Context, info tier.Info, err error) {
	reason := ""
	var wrongPlace *pagefile.Misplaced
	switch {
	case errors.As(err, &wrongPlace):
		lv.s.counts.mismatched.Add(1)
		reason = "misplaced"
	case errors.Is(err, pagefile.ErrMismatch):
		lv.s.counts.mismatched.Add(1)
		return
	case errors.Is(err, pagefile.ErrDamaged):
		lv.s.counts.damaged.Add(1)
		reason = "damaged"
	case lv == lv.s.local && errors.Is(err, syscall.EIO):
		// A bad sector stays bad; a remote mount may recover.
		lv.s.counts.tierErrors.Add(1)
		reason = "unreadable"
	default:
		lv.copies.forget(info.Name) // the file may stay unreadable
		lv.noteTierError(err)
		return
	}
	lv.copies.forget(info.Name)
	v := lv.verdicts
	ok, enough := v.mayCondemn()
	if enough {
		lv.s.log.Warn("kv pages fail their check too often on this machine, they stay in their place: check its memory, disk and network, then run kvtier check",
			"page", info.Key.String(), "tier", lv.name, "why", err, "failed", v.limit+1, "in", condemnHour)
	}
	if !ok {
		v.markBad(info)
		return
	}
	moved, qerr := lv.quarantine(ctx, info, reason)
	if qerr != nil {
		v.markBad(info)
	}
	if moved {
		lv.bury(info.Name, GraveDamaged)
	}
	if moved || qerr != nil {
		lv.s.log.Warn("kv page is not usable and will be computed again", "page", info.Key.String(), "tier", lv.name,
			"why", err, "quarantined", moved)
	}
}

// quarantine moves the file that info describes to quarantine and stops counting it as a page.
// In the remote tier quarantine does not wait for a running count, because a look-up would
// wait as well; that count may be wrong by this file.
func (lv *level) quarantine(ctx context.Context, info tier.Info, reason string) (bool, error) {
	if lv != lv.s.local {
		moved, err := lv.tier.Quarantine(ctx, info, reason)
		if moved {
			lv.counts.quarantined.Add(1)
			lv.use.remove(info)
		}
		return moved, err
	}
	moved, err := lv.moveAside(ctx, info, reason)
	if moved {
		lv.counts.quarantined.Add(1)
		lv.s.disk.SyncAside(lv.s.disk.Path(info.Name))
	}
	return moved, err
}

// moveAside moves a file of the local tier to quarantine and stops counting it as a page. The
// caller makes the move durable.
func (lv *level) moveAside(ctx context.Context, info tier.Info, reason string) (bool, error) {
	lv.commit.RLock()
	defer lv.commit.RUnlock()
	moved, err := lv.s.disk.MoveAside(ctx, info, reason)
	if moved {
		lv.use.remove(info)
	}
	return moved, err
}

// requestPromotion copies a remote page to the local tier in the background.
func (s *Store) requestPromotion(info tier.Info, ref Ref) {
	if budget := s.opt.Local.BudgetBytes; budget > 0 && pagefile.AlignUp(info.Bytes) > budget {
		return
	}
	s.promoting.Submit(info.Name, func(ctx context.Context) { s.promote(ctx, info, ref) })
}

// promote copies a page to the local tier. The remote copy stays, so that a later demotion of
// the page writes nothing.
func (s *Store) promote(ctx context.Context, info tier.Info, ref Ref) {
	for _, name := range []pagefile.Name{info.Name, s.exactName(info.Name)} { // put since the look-up
		if ours, err := s.disk.Stat(ctx, name); err == nil && !s.local.verdicts.isBad(ours) {
			return
		}
	}
	room, used, err := s.makeRoom(ctx, info.Bytes, position{parent: ref.Parent, start: ref.Start})
	if err != nil {
		return // the page stays remote
	}
	defer room.Cancel()
	_ = s.copyUp(ctx, s.guard, info, room, used) // after an error the page stays remote
}

// copyUp copies a page of the remote tier, from, into room of the local one.
func (s *Store) copyUp(ctx context.Context, from tier.Tier, info tier.Info, room *ledger.Room, used time.Time) error {
	page, err := copyPage(ctx, from, s.disk, info.Name, room, func(up tier.Upload) error {
		return s.local.commitTo(ctx, up, room, used)
	})
	if err != nil {
		var side *copyError
		if errors.As(err, &side) && side.side != s.disk {
			s.remote.condemn(ctx, judged(err, info), err)
		} else {
			s.local.noteTierError(err)
		}
		return err
	}
	s.remote.copies.good(page.from, page.header.Crc)
	s.counts.promoted.Add(1)
	s.afterGrowth(ctx)
	return s.local.linkIn(ctx, page.header)
}
