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

// ReadOption says how a page is read.
type ReadOption int

// Gently reads on one processor, and gives the same as without: others compute what
// somebody waits for.
const Gently ReadOption = 1

// codecFor returns the codec of a read.
func (s *Store) codecFor(how []ReadOption) *pagefile.Codec {
	if slices.Contains(how, Gently) {
		return s.codec.Gently()
	}
	return s.codec
}

// Read fills buf with sections of a page, laid out by layout: all that the page
// has, or some of them in the same order. tokens are the ref.Tokens tokens the
// caller expects at ref.Start; layout is for ref.Stored tokens; buf is
// layout.Size() bytes. Of a tail with ref.Tokens < ref.Stored only the first
// ref.Tokens rows of each section belong to the caller's sequence, and what its
// sections hold beside rows belongs to another.
//
// Header, fingerprint, key, parent, position, tokens, footer, and every byte of
// the sections that are read are checked before Read returns nil. A page in
// memory was checked when it came there. After an error buf is undefined. A page that the tier of ref does not give is looked for in the
// others.
//
// It returns ErrNotFound; ErrDamaged, with the file in quarantine; ErrMismatch
// for a well-formed page that is not the one described; ErrInvalidPage for
// arguments that do not fit together; ErrTierDown, ErrTierTimeout, ErrClosed,
// ctx's error or an error of the filesystem. All of them mean: compute it.
func (s *Store) Read(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, buf []byte, how ...ReadOption) error {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	defer s.traffic.Enter()()
	if err := s.checkRead(ref, tokens, layout, buf); err != nil {
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
	page, err := s.read(ctx, ref, tokens, layout, buf, s.codecFor(how))
	end(err == nil)
	if err != nil {
		return err
	}
	page.blob.Close()
	s.keepRead(page, layout, buf)
	return nil
}

// keepRead keeps a page in memory that was read as a whole.
func (s *Store) keepRead(page verified, layout pagefile.Layout, buf []byte) {
	if layout.Equal(page.header.Layout) {
		page.level.keepInRAM(page.blob.Info(), page.header, buf)
	}
}

// checkRead returns ErrInvalidPage for arguments of Read that do not fit together.
func (s *Store) checkRead(ref Ref, tokens []int32, layout pagefile.Layout, buf []byte) error {
	if len(tokens) != ref.Tokens || ref.Tokens < 1 || layout.Tokens() != ref.Stored || ref.Stored < ref.Tokens || len(buf) != layout.Size() {
		return fmt.Errorf("read page %v: %d of %d tokens wanted, have %d tokens, a layout for %d and %d bytes for %d: %w",
			ref.Key, ref.Tokens, ref.Stored, len(tokens), layout.Tokens(), len(buf), layout.Size(), pagefile.ErrInvalidPage)
	}
	return nil
}

// verified is a page's open file after what was wanted of it was checked.
type verified struct {
	level  *level
	blob   tier.Blob
	header *pagefile.Header
}

// read is Read from the tiers. It hands out the file, for the caller to close.
func (s *Store) read(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, buf []byte, codec *pagefile.Codec) (verified, error) {
	var worst error
	for _, lv := range s.levels(ref.Tier) {
		page, err := lv.readFrom(ctx, ref, tokens, layout, buf, codec)
		if err == nil {
			lv.hit()
			s.counts.readBytes.Add(uint64(len(buf)))
			return page, nil
		}
		// Of two failures the caller wants the one that is not "not there".
		if worst == nil || errors.Is(worst, tier.ErrNotFound) {
			worst = err
		}
		if ctx.Err() != nil || errors.Is(err, pagefile.ErrMismatch) {
			break
		}
	}
	if errors.Is(worst, tier.ErrNotFound) {
		s.counts.misses.Add(1)
	}
	return verified{}, fmt.Errorf("read page %v: %w", ref.Key, worst)
}

// readFrom reads a page from one tier.
func (lv *level) readFrom(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, buf []byte, codec *pagefile.Codec) (verified, error) {
	var header *pagefile.Header
	blob, err := lv.openChecked(ctx, lv.s.refName(ref), func(blob tier.Blob) (err error) {
		header, err = lv.s.readBlob(ctx, blob, ref, tokens, layout, buf, codec)
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

// readBlob checks an open file against what is wanted and reads it.
func (s *Store) readBlob(ctx context.Context, blob tier.Blob, ref Ref, tokens []int32, layout pagefile.Layout, buf []byte, codec *pagefile.Codec) (*pagefile.Header, error) {
	h, err := pagefile.ReadHeader(ctx, blob)
	if err != nil {
		return nil, err
	}
	if err := h.CheckName(blob.Info().Name); err != nil {
		return nil, err
	}
	if err := checkWanted(h, ref, s.opt.PageTokens, tokens, layout); err != nil {
		return nil, err
	}
	sel, _ := h.Select(layout)
	return h, pagefile.ReadPayload(ctx, blob, h, sel, codec, buf)
}

// checkWanted returns ErrMismatch unless h is the page that a caller of Read
// describes.
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

// condemn deals with a file that could not be used because of err, also when it
// was read past the cache: one that is damaged, or not the page its name says,
// goes to quarantine, so that the page can be stored again. Where this process
// has condemned so many that it is rather the one at fault, or quarantine is full,
// the file stays, and counts as not stored here. A file that is merely not what
// the caller described stays as well: the caller may be wrong.
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
		// A bad sector stays bad; a remote mount may only be having a bad day.
		lv.s.counts.tierErrors.Add(1)
		reason = "unreadable"
	default:
		lv.noteTierError(err)
		return
	}
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
	if moved || qerr != nil {
		lv.s.log.Warn("kv page is not usable and will be computed again", "page", info.Key.String(), "tier", lv.name,
			"why", err, "quarantined", moved)
	}
}

// quarantine moves the file that info describes out of the way and stops counting it
// as a page. A lookup must not wait for a count of the remote tier, which may then be
// wrong by this file.
func (lv *level) quarantine(ctx context.Context, info tier.Info, reason string) (bool, error) {
	if lv == lv.s.local {
		lv.commit.RLock()
		defer lv.commit.RUnlock()
	}
	moved, err := lv.tier.Quarantine(ctx, info, reason)
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

// promote copies a page up. The remote copy stays, so that demoting the page
// later writes nothing.
func (s *Store) promote(ctx context.Context, info tier.Info, ref Ref) {
	if ours, err := s.disk.Stat(ctx, info.Name); err == nil && !s.local.verdicts.isBad(ours) {
		return
	}
	room, used, err := s.makeRoom(ctx, info.Bytes, position{parent: ref.Parent, start: ref.Start})
	if err != nil {
		return // it stays where it is
	}
	defer room.Cancel()
	_ = s.copyUp(ctx, s.guard, info, room, used) // it stays where it is
}

// copyUp copies a page of the remote tier, from, into room of the local one.
func (s *Store) copyUp(ctx context.Context, from tier.Tier, info tier.Info, room *ledger.Room, used time.Time) error {
	err := copyPage(ctx, from, s.disk, info.Name, room, func(up tier.Upload) error {
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
	s.counts.promoted.Add(1)
	s.local.trimCopied(ctx, info.Name)
	s.afterGrowth(ctx)
	return nil
}
