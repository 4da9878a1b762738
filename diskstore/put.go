package diskstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/branch"
	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// Put stores a page in the local tier, as a tail when the page is shorter than
// Options.PageTokens. After Put has returned nil, the page survives a power cut. Put is idempotent: a
// page that is stored already, by its header, is not written again.
//
// A tail replaces the tails of the same parent whose tokens it extends.
//
// Room is made before the page is written, by evicting pages used less recently. Put waits
// for that room, whichever process makes it, at most 5 s.
//
// Put returns pagefile.ErrInvalidPage; tier.ErrNoSpace when there is no room; ledger.ErrWriteCap;
// tier.ErrClosed, ctx's error, or an error of the filesystem. After an error no part of the page is
// visible, and the next Put may succeed.
func (s *Store) Put(ctx context.Context, p *pagefile.Page) error { return s.put(ctx, p, false) }

// PutIfRoom does as Put, except that no page is evicted: PutIfRoom stores a page only with
// room to spare, and makes neither the page nor its chain more recent than the page before it.
// Without room to spare PutIfRoom returns tier.ErrNoSpace.
func (s *Store) PutIfRoom(ctx context.Context, p *pagefile.Page) error { return s.put(ctx, p, true) }

func (s *Store) put(ctx context.Context, p *pagefile.Page, ifRoom bool) error {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	defer s.traffic.Enter()()
	if err := p.Check(s.opt.PageTokens); err != nil {
		return err
	}
	if (p.Start == 0) != (p.Parent == s.opt.Fingerprint) {
		return fmt.Errorf("put page: start %d does not go with parent %v: %w", p.Start, p.Parent, pagefile.ErrInvalidPage)
	}
	name := s.pages.Page(p.Key())
	if len(p.Tokens) < s.opt.PageTokens {
		name = s.pages.Tail(name.Key)
	}
	err = s.putName(ctx, name, p, ifRoom)
	if err == nil {
		s.health.note("put", nil)
		return nil
	}
	if vfs.IsNoSpace(err) {
		err = fmt.Errorf("%w (%w)", err, tier.ErrNoSpace)
	}
	s.counts.putErrors.Add(1)
	if ctx.Err() == nil && !ifRoom && !errors.Is(err, ledger.ErrWriteCap) {
		s.counts.tierErrors.Add(1)
		s.health.note("put", err)
	}
	return fmt.Errorf("put page %v: %w", name.Key, err)
}

func (s *Store) putName(ctx context.Context, name pagefile.Name, p *pagefile.Page, ifRoom bool) error {
	if h := s.stored(ctx, name, p, ifRoom); h != nil {
		if err := s.local.tier.Persist(ctx, name); err != nil {
			return err
		}
		_, err := s.local.addBranch(ctx, h)
		return err
	}
	p.ClearGaps()
	var codec *pagefile.Codec // nil leaves the page as it is
	if s.opt.Compress {
		codec = s.codec
	}
	e, err := pagefile.Encode(s.opt.Fingerprint, s.opt.PageTokens, p, codec)
	if err != nil {
		return err
	}
	size := e.Header.FileBytes
	at := recency.Place{Parent: p.Parent, Start: p.Start}
	var was before
	if name.Class == pagefile.ClassPage {
		was = s.local.before(ctx, name)
	}
	err = s.maker.Write(ctx, size, at, ifRoom, func(room *ledger.Room, used time.Time) error {
		uses := was.uses()
		if was.again(used) {
			uses++
		}
		if uses > 0 {
			used = recency.WithUses(used, min(uses, s.chains.MostUses(ctx, at.Parent)))
		}
		if err := s.local.files.Upload(ctx, name, e, room, used); err != nil {
			return err
		}
		if name.Class == pagefile.ClassPage {
			s.chains.Note(name.Key, recency.Link{Place: at, Used: recency.Used(used, at.Start)})
			s.local.stored(was, used, s.now())
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.counts.puts.Add(1)
	s.counts.rawBytes.Add(uint64(len(p.Payload)))
	s.counts.wroteBytes.Add(uint64(size))
	s.ram.keep(s.local, tier.Info{Name: name, Bytes: size, Used: time.Now()}, e.Header, p.Payload, "")
	s.maker.Grown(ctx)
	s.through.Add(name)
	return s.local.linkIn(ctx, e.Header)
}

// stored returns the header of an exact page with the sections of p that the local tier holds, and nil for
// none. Unless ifRoom is set, stored touches the page. Any other file of that name may be replaced.
func (s *Store) stored(ctx context.Context, name pagefile.Name, p *pagefile.Page, ifRoom bool) *pagefile.Header {
	info, err := tier.Stat(ctx, s.disk, name)
	if err != nil {
		return nil
	}
	h, _, err := s.local.checked.Header(ctx, name)
	if err != nil || h.Lossy() {
		return nil
	}
	if _, ok := p.Layout.Within(h.Layout); !ok {
		return nil
	}
	if now := s.now(); !ifRoom && !s.chains.Fresh(recency.Used(info.Used, p.Start), now) {
		s.chains.Touch(ctx, name, recency.Place{Parent: p.Parent, Start: p.Start}, now)
	}
	return h
}

// settleMost bounds the time in which the removal of extended tails becomes durable.
const settleMost = 2 * time.Second

// dropExtended removes the tails that h, just stored, makes superfluous, of those that begin like
// it. The next tail's Put retries failures.
func (lv *level) dropExtended(ctx context.Context, h *pagefile.Header, met []branch.Candidate) {
	gone := lv.files.NewRemoval()
	for _, c := range met {
		if !c.Whole() || c.Class != pagefile.ClassTail || !extends(ctx, lv.tier, c.Name(), h) {
			continue
		}
		if info, err := tier.Stat(ctx, lv.tier, c.Name()); err == nil && gone.Drop(ctx, info) == nil {
			lv.noteTierError(lv.tier.RemoveBranch(ctx, c.Branch))
		}
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), settleMost)
	defer stop()
	gone.Settle(ctx)
}

// extends reports whether h continues the tail stored at name and has all of its sections. A
// state belongs to one position, so a longer tail has another state.
func extends(ctx context.Context, t tier.Tier, name pagefile.Name, h *pagefile.Header) bool {
	old, err := tier.ReadHeader(ctx, t, name)
	if err != nil || len(old.Tokens) >= len(h.Tokens) || old.Layout.HasState() {
		return false
	}
	has := h.Layout.Sections()
	lacks := func(section pagefile.Section) bool { return !slices.Contains(has, section) }
	if slices.ContainsFunc(old.Layout.Sections(), lacks) {
		return false
	}
	n := len(old.Tokens)
	return pagefile.CommonPrefix(old.Tokens, old.Media, h.Tokens, h.Media) == n
}

// Has reports whether the local tier holds the full page key, exact, and no Read has found the page
// damaged. Has costs one system call. Read may fail nevertheless.
func (s *Store) Has(key pagefile.Key) bool {
	ctx, leave, err := s.life.Enter(context.Background())
	if err != nil {
		return false
	}
	defer leave()
	info, err := tier.Stat(ctx, s.disk, s.pages.Page(key))
	return err == nil && !s.local.checked.Bad.IsBad(info)
}

type manifests struct {
	pages      *names.Pages
	pageTokens int
	identity   map[string]string
	origin     string
}

// severalOrigins is the origin of a model that stores had from different places.
const severalOrigins = "several"

// ensure writes this store's manifest if the tier has no readable one with its origin. ensure returns
// pagefile.ErrMismatch when that one has another page size, which the fingerprint should have distinguished.
func (m *manifests) ensure(ctx context.Context, t tier.Disk) error {
	there, err := tier.ReadManifest(ctx, t, m.pages.Exact)
	switch {
	case err == nil && there.PageTokens != m.pageTokens:
		return pagefile.Mismatch("fingerprint %v has pages of %d tokens, want %d", m.pages.Exact, there.PageTokens, m.pageTokens)
	case err == nil && (m.origin == "" || there.Origin == m.origin || there.Origin == severalOrigins):
		return nil
	case err == nil && there.Origin != "":
		return m.write(ctx, t, m.pages.Exact, severalOrigins)
	case err != nil && !errors.Is(err, tier.ErrNotFound) && !errors.Is(err, pagefile.ErrDamaged):
		return err
	}
	return m.write(ctx, t, m.pages.Exact, m.origin)
}

// write writes the manifest of this store's pages, exact or lossy ones.
func (m *manifests) write(ctx context.Context, t tier.Disk, fingerprint pagefile.Key, origin string) error {
	identity := m.identity
	if fingerprint == m.pages.Lossy {
		identity = make(map[string]string)
		maps.Copy(identity, m.identity)
		identity[tier.KeyLossyOf] = m.pages.Exact.String()
	}
	return tier.WriteManifest(ctx, t, fingerprint, &tier.Manifest{
		Schema: pagefile.Schema, Fingerprint: fingerprint.String(), PageTokens: m.pageTokens, Identity: identity, Origin: origin,
	})
}

// describe writes the manifest of this store's pages if a tier has no file there: kvtier rm
// beside a server removes it. A page without one is good, and nothing says which model it is of.
func (m *manifests) describe(ctx context.Context, t tier.Disk, fingerprint pagefile.Key) error {
	return ifUndescribed(ctx, t, fingerprint, func() error { return m.write(ctx, t, fingerprint, "") })
}

// below makes the remote tier describe a page that moves there. made tells that this store has made the
// page lossy. The manifest of another store's page is copied.
func (m *manifests) below(ctx context.Context, local, remote tier.Disk, fingerprint pagefile.Key, made bool) error {
	if made || fingerprint == m.pages.Exact {
		return m.describe(ctx, remote, fingerprint)
	}
	return ifUndescribed(ctx, remote, fingerprint, func() error {
		theirs, err := tier.ReadManifest(ctx, local, fingerprint)
		if errors.Is(err, tier.ErrNotFound) || errors.Is(err, pagefile.ErrDamaged) {
			return nil // pages are good without a manifest
		}
		if err != nil {
			return err
		}
		theirs.Origin = "" // a place on this machine
		return tier.WriteManifest(ctx, remote, fingerprint, theirs)
	})
}

// ifUndescribed calls write if a tier has no file in the place of a manifest.
func ifUndescribed(ctx context.Context, t tier.Disk, fingerprint pagefile.Key, write func() error) error {
	_, err := tier.Stat(ctx, t, pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassManifest})
	if errors.Is(err, tier.ErrNotFound) {
		err = write()
	}
	if err != nil {
		return fmt.Errorf("describe the pages of %v: %w", fingerprint, err)
	}
	return nil
}
