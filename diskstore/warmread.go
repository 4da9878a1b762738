package diskstore

import (
	"context"
	"errors"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// readWarm is Read from memory. It reports false when the page is not here, is
// not the one described, or when no tier is known to have its file: then the
// tiers are asked. With place a page whose rows could be used where they lie on
// disk is left to them, too.
func (s *Store) readWarm(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, buf []byte, place bool) bool {
	name := s.refName(ref)
	p := s.warm.pin(name)
	if p == nil {
		return false
	}
	defer s.warm.unpin(p)
	if place && p.placeable || checkWanted(p.header, ref, s.opt.PageTokens, tokens, layout) != nil || !s.stillStored(ctx, name) || ctx.Err() != nil {
		return false
	}
	at, _ := layout.Within(p.header.Layout)
	for i, from := range at {
		copy(layout.Rows(buf, i), p.header.Layout.Rows(p.rows, from))
		clear(layout.Gap(buf, i))
	}
	lv, used := s.warm.noteServed(p)
	lv.hit()
	s.counts.ramHits.Add(1)
	s.counts.readBytes.Add(uint64(len(buf)))
	lv.touchRef(ctx, ref, used)
	return true
}

// stillStored reports whether a tier has, or had a moment ago, the file of a page
// in memory. When all of them say that it is gone the page is forgotten.
func (s *Store) stillStored(ctx context.Context, name pagefile.Name) bool {
	if _, _, fresh := s.warm.fresh(name); fresh {
		return true
	}
	for _, lv := range s.levels(tier.Local) {
		info, err := lv.tier.Stat(ctx, name)
		if err == nil {
			return s.warm.confirm(info, lv)
		}
		if !errors.Is(err, tier.ErrNotFound) {
			lv.noteTierError(err)
			return false // perhaps it is there: neither used nor forgotten
		}
	}
	s.warm.drop(name)
	return false
}

// warmTail returns the tail in memory that shares the longest prefix with rest,
// of equal ones the shortest; see findTail.
func (s *Store) warmTail(ctx context.Context, parent pagefile.Key, start int, rest []int32, media []pagefile.Media) Ref {
	var best Ref
	for _, p := range s.warm.tailsOf(parent) {
		h := p.header
		n := pagefile.CommonPrefix(h.Tokens, h.Media, rest, media)
		longer := n > best.Tokens || n == best.Tokens && len(h.Tokens) < best.Stored
		if n == 0 || !longer || int64(h.Start) != int64(start) || !s.stillStored(ctx, p.name) {
			continue
		}
		best = Ref{
			Key: h.Key, Parent: parent, Start: h.Start, Tokens: n, Stored: len(h.Tokens), Tail: true,
			Tier: tier.RAM, Bytes: p.bytes,
		}
	}
	return best
}

// keepWarm keeps a page in memory that a tier has just stored or given.
func (lv *level) keepWarm(info tier.Info, h *pagefile.Header, rows []byte) {
	if lv.s.warm == nil {
		return
	}
	lv.s.wakeWarm()
	lv.s.warm.add(info, lv, h, rows, lv == lv.s.local && h.Raw())
}

// keepAhead keeps a page in memory that is read ahead, in free room. It reports
// whether there was some, and returns the error of read.
func (lv *level) keepAhead(info tier.Info, h *pagefile.Header, read func(rows []byte) error) (bool, error) {
	lv.s.wakeWarm()
	return lv.s.warm.addBehind(info, lv, h, lv == lv.s.local && h.Raw(), read)
}

// wakeWarm takes this runner's part of the memory when nobody has looked since the
// last page went.
func (s *Store) wakeWarm() {
	if !s.warm.clock.going() {
		s.shareWarm()
	}
}

// tendWarm runs while pages are in memory. It follows what the server's other
// runners do, and forgets pages whose files are gone though nobody asks for them.
func (s *Store) tendWarm() bool {
	s.shareWarm()
	for _, name := range s.warm.unseen() {
		if s.life.Ctx.Err() != nil {
			return false
		}
		s.stillStored(s.life.Ctx, name)
	}
	return s.warm.holds()
}
