package diskstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/kvtier/kvtier/diskstore/internal/ram"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// readRAM reads a page from memory. readRAM returns false, and Read continues with the tiers,
// when the page is not in memory, is not the described one, or when no tier is known to have
// its file; with place, also when the page's rows could be used in place on disk.
func (s *Store) readRAM(ctx context.Context, ref Ref, tokens []int32, layout pagefile.Layout, buf []byte, place bool) bool {
	name := s.refName(ref)
	p := s.ram.Pin(name)
	if p == nil {
		return false
	}
	defer s.ram.Unpin(p)
	if place && p.Placeable || checkWanted(p.Header, ref, s.opt.PageTokens, tokens, layout) != nil || !s.stillStored(ctx, name) || ctx.Err() != nil {
		return false
	}
	at, _ := layout.Within(p.Header.Layout)
	for i, from := range at {
		copy(layout.Rows(buf, i), p.Header.Layout.Rows(p.Rows, from))
		clear(layout.Gap(buf, i))
	}
	file := s.ram.Served(p)
	lv := s.level(file.Tier)
	lv.hit(name.Fingerprint)
	s.counts.ramHits.Add(1)
	s.ahead.used(name, true)
	s.counts.readBytes.Add(uint64(len(buf)))
	lv.touchRef(ctx, ref, file.Used)
	return true
}

// stillStored reports whether a tier has, or had within Lease, the file of a page in memory.
// When every tier reports the file missing, the page is dropped from memory.
func (s *Store) stillStored(ctx context.Context, name pagefile.Name) bool {
	if _, fresh := s.ram.Fresh(name); fresh {
		return true
	}
	for _, lv := range s.levels(tier.Local) {
		info, err := lv.tier.Stat(ctx, name)
		if err == nil {
			return s.ram.Confirm(ram.File{Info: info, Tier: lv.name})
		}
		if !errors.Is(err, tier.ErrNotFound) {
			lv.noteTierError(err)
			return false // the file may exist: the page is neither served nor dropped
		}
	}
	s.ram.Drop(name)
	return false
}

// tailInRAM returns the tail in memory that shares the longest prefix with rest, the shortest
// of equal ones; see findLast.
func (s *Store) tailInRAM(ctx context.Context, at after, rest []int32, media []pagefile.Media) Ref {
	var best Ref
	for _, p := range s.ram.TailsOf(at.fingerprint, at.parent) {
		h := p.Header
		n := pagefile.CommonPrefix(h.Tokens, h.Media, rest, media)
		longer := n > best.Tokens || n == best.Tokens && len(h.Tokens) < best.Stored
		if n == 0 || !longer || int64(h.Start) != int64(at.start) || !s.stillStored(ctx, p.Name) {
			continue
		}
		best = Ref{
			Key: h.Key, Parent: at.parent, Start: h.Start, Tokens: n, Stored: len(h.Tokens), Tail: true, Lossy: at.fingerprint == s.pages.Lossy, Media: h.Media,
			Tier: tier.RAM, Bytes: p.FileBytes, old: p.Name.Parent != pagefile.Key{},
		}
	}
	return best
}

// keepInRAM keeps a page in memory that a tier has just stored or read. from is the tier that
// the page was read from, "" for a page just stored.
func (lv *level) keepInRAM(info tier.Info, h *pagefile.Header, rows []byte, from string) {
	if lv.s.ram == nil {
		return
	}
	lv.s.wakeRAM()
	lv.s.ram.Add(lv.fileInRAM(info, h, from), h, rows)
}

// keepAhead keeps a page that is read ahead in free memory. keepAhead reports whether there
// was room, and returns the error of read.
func (lv *level) keepAhead(info tier.Info, h *pagefile.Header, read func(rows []byte) error) (bool, error) {
	lv.s.wakeRAM()
	return lv.s.ram.AddBehind(lv.fileInRAM(info, h, lv.name), h, read)
}

// fileInRAM describes the file of a page that is added to memory.
func (lv *level) fileInRAM(info tier.Info, h *pagefile.Header, from string) ram.File {
	return ram.File{Info: info, Tier: lv.name, From: from, Placeable: lv == lv.s.local && h.Raw()}
}

// InRAM counts the full pages with these keys that are in memory. InRAM does no I/O.
func (s *Store) InRAM(keys []pagefile.Key) int {
	n := 0
	for _, key := range keys {
		if s.ram.Has(s.pages.Page(key)) {
			n++
		}
	}
	return n
}

// wakeRAM takes this runner's share of memory if no clock ticks, because no page was in
// memory.
func (s *Store) wakeRAM() {
	if !s.ram.Ticking() {
		s.shareRAM()
	}
}

// tendRAM runs while pages are in memory. tendRAM adapts this runner's share to the server's
// other runners, and drops unused pages whose files are gone.
func (s *Store) tendRAM() bool {
	s.shareRAM()
	for _, name := range s.ram.Unseen() {
		if s.life.Ctx.Err() != nil {
			return false
		}
		s.stillStored(s.life.Ctx, name)
	}
	return s.ram.Holds()
}

// shareRAM takes this runner's share of its server's budget, which all runners of the server
// divide evenly. While the number of runners is unknown, no page is kept: the memory may
// belong to another runner.
//
// Each runner has a lock file in the local root's temporary directory. With a budget its name
// begins with the server's prefix, so counting such files gives the number of runners. The
// system releases the lock of a runner that dies, and the next count removes the file.
func (s *Store) shareRAM() {
	n, err := s.disk.Peers()
	s.ramHealth.note("share memory between runners", err)
	if err != nil {
		s.ram.SetLimit(0)
		return
	}
	s.ram.SetLimit(s.opt.RAM.BudgetBytes / int64(n))
}

// serverPrefix is the beginning of the names of lock files of a server's runners. The prefix has
// no hyphen, because names of temporary files are cut at a hyphen.
func serverPrefix(server string) string {
	sum := sha256.Sum256([]byte(server))
	return "warm." + hex.EncodeToString(sum[:8]) + "."
}
