package diskstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/kvtier/kvtier/diskstore/internal/ram"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// fromRAM reads a page from memory. fromRAM returns false, and Read continues with the tiers,
// when the page is not in memory, is not the described one, or when no tier is known to have
// its file; with place, also when the page's rows could be used in place on disk.
func (r *reader) fromRAM(ctx context.Context, w wanted, buf []byte, place bool) bool {
	name := w.ref.name(r.pages)
	p := r.ram.Pin(name)
	if p == nil {
		return false
	}
	defer r.ram.Unpin(p)
	if place && p.Placeable || w.matches(p.Header, r.pageTokens) != nil || !r.ram.stillStored(ctx, name) || ctx.Err() != nil {
		return false
	}
	at, _ := w.layout.Within(p.Header.Layout)
	for i, from := range at {
		copy(w.layout.Rows(buf, i), p.Header.Layout.Rows(p.Rows, from))
		clear(w.layout.Gap(buf, i))
	}
	file := r.ram.Served(p)
	lv := r.tiers.named(file.Tier)
	r.counts.hits.Add(1)
	lv.hit(name.Fingerprint)
	r.counts.ramHits.Add(1)
	r.ahead.used(name, true)
	r.counts.readBytes.Add(uint64(len(buf)))
	r.touch(ctx, lv, w.ref, file.Used)
	return true
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

type memory struct {
	*ram.Tier

	levels levels              // which have the files of the pages, in the order of look-ups
	lossy  pagefile.Key        // fingerprint of lossy pages
	budget int64               // bytes, of all runners of the server together; 0 keeps no page
	peers  func() (int, error) // counts these runners
	health health
	life   *work.Life
}

func (m *memory) off() bool { return m.budget == 0 }

// stillStored reports whether a tier has, or had within Lease, the file of a page in memory.
// When every tier reports the file missing, the page is dropped from memory.
func (m *memory) stillStored(ctx context.Context, name pagefile.Name) bool {
	if _, fresh := m.Fresh(name); fresh {
		return true
	}
	for _, lv := range m.levels {
		info, err := tier.Stat(ctx, lv.tier, name)
		if err == nil {
			return m.Confirm(ram.File{Info: info, Tier: lv.name})
		}
		if !errors.Is(err, tier.ErrNotFound) {
			lv.noteTierError(err)
			return false // the file may exist: the page is neither served nor dropped
		}
	}
	m.Drop(name)
	return false
}

// tail returns the tail in memory that shares the longest prefix with the tokens at a place, the
// shortest of equal ones; see findLast.
func (m *memory) tail(ctx context.Context, at after) Ref {
	var best Ref
	for _, p := range m.TailsOf(at.Fingerprint, at.Parent) {
		h := p.Header
		n := pagefile.CommonPrefix(h.Tokens, h.Media, at.Tokens, at.Media)
		longer := n > best.Tokens || n == best.Tokens && len(h.Tokens) < best.Stored
		if n == 0 || !longer || int64(h.Start) != int64(at.start) || !m.stillStored(ctx, p.Name) {
			continue
		}
		best = Ref{
			Key: h.Key, Parent: at.Parent, Start: h.Start, Tokens: n, Stored: len(h.Tokens), Tail: true, Lossy: at.Fingerprint == m.lossy, Media: h.Media,
			Tier: tier.RAM, Bytes: p.FileBytes, state: h.Layout.HasState(),
		}
	}
	return best
}

// keep keeps a page in memory that a tier has just stored or read. from is the tier that
// the page was read from, "" for a page just stored.
func (m *memory) keep(lv *level, info tier.Info, h *pagefile.Header, rows []byte, from string) {
	if m.off() {
		return
	}
	m.wake()
	m.Add(fileInRAM(lv, info, h, from), h, rows)
}

// keepAhead keeps a page that is read ahead in free memory. keepAhead reports whether there
// was room, and returns the error of read.
func (m *memory) keepAhead(lv *level, info tier.Info, h *pagefile.Header, read func(rows []byte) error) (bool, error) {
	m.wake()
	return m.AddBehind(fileInRAM(lv, info, h, lv.name), h, read)
}

// fileInRAM describes the file of a page that is added to memory.
func fileInRAM(lv *level, info tier.Info, h *pagefile.Header, from string) ram.File {
	return ram.File{Info: info, Tier: lv.name, From: from, Placeable: !lv.far && h.Raw()}
}

// wake takes this runner's share of memory if no clock ticks, because no page was in memory.
func (m *memory) wake() {
	if !m.Ticking() {
		m.share()
	}
}

// tend runs while pages are in memory. tend adapts this runner's share to the server's
// other runners, and drops unused pages whose files are gone.
func (m *memory) tend() bool {
	m.share()
	for _, name := range m.Unseen() {
		if m.life.Ctx.Err() != nil {
			return false
		}
		m.stillStored(m.life.Ctx, name)
	}
	return m.Holds()
}

// share takes this runner's share of its server's budget, which all runners of the server divide evenly.
// While the number of runners is unknown, no page is kept: the memory may belong to another runner.
//
// Each runner has a lock file in the local root's temporary directory. With a budget its name
// begins with the server's prefix, so counting such files gives the number of runners. The
// system releases the lock of a runner that dies, and the next count removes the file.
func (m *memory) share() {
	n, err := m.peers()
	m.health.note("share memory between runners", err)
	if err != nil {
		m.SetLimit(0)
		return
	}
	m.SetLimit(m.budget / int64(n))
}

// serverPrefix is the beginning of the names of lock files of a server's runners. The prefix has
// no hyphen, because names of temporary files are cut at a hyphen.
func serverPrefix(server string) string {
	sum := sha256.Sum256([]byte(server))
	return "warm." + hex.EncodeToString(sum[:8]) + "."
}
