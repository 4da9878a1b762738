package diskstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// maxTails is how many tails of one parent a tier keeps.
	maxTails = 16

	// collectWait is how long a Put waits for a collection that has fallen
	// behind.
	collectWait = 5 * time.Second

	// The local tier is counted again when its count is older than recountEvery
	// or this process has added more than 1/recountShare of the budget to it.
	recountEvery = time.Minute
	recountShare = 32
)

// Put stores a page in the local tier, as a tail when it is shorter than
// Options.PageTokens. When it returns nil the page survives a power cut. It is
// idempotent: a page that is stored already, as far as its header tells, is not
// written again.
//
// A tail replaces the tails of the same parent whose tokens it extends, and the
// least recent ones beyond 16.
//
// It returns ErrInvalidPage, ErrNoSpace when the page does not fit after
// collecting once, ErrClosed, ctx's error, or an error of the filesystem. After
// an error nothing partial is visible and the next Put may well succeed.
func (s *Store) Put(ctx context.Context, p *Page) error {
	ctx, leave, err := s.life.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := p.check(s.opt.PageTokens); err != nil {
		return err
	}
	if (p.Start == 0) != (p.Parent == s.opt.Fingerprint) {
		return fmt.Errorf("put page: start %d does not go with parent %v: %w", p.Start, p.Parent, ErrInvalidPage)
	}
	name := s.pageName(p.Key())
	if len(p.Tokens) < s.opt.PageTokens {
		name = s.tailName(p.Parent, name.Key)
	}
	err = s.putName(ctx, name, p)
	if err == nil {
		s.health.note("put", nil)
		return nil
	}
	s.counts.putErrors.Add(1)
	if ctx.Err() == nil {
		s.counts.tierErrors.Add(1)
		s.health.note("put", err)
	}
	return fmt.Errorf("put page %v: %w", name.Key, err)
}

func (s *Store) putName(ctx context.Context, name Name, p *Page) error {
	if s.stored(ctx, name, p.Layout) {
		return s.local.Persist(ctx, name)
	}
	p.clearGaps()
	c := s.codec
	if !s.opt.Compress {
		c = nil
	}
	e, err := encodePage(s.opt.Fingerprint, s.opt.PageTokens, p, c)
	if err != nil {
		return err
	}
	size := e.header.FileBytes
	if err := s.admit(ctx, size); err != nil {
		return err
	}
	err = s.write(ctx, name, e)
	switch {
	case errors.Is(err, ErrNoSpace):
		// Twice, because directories need room as well, and some filesystems do
		// not give back at once what was removed.
		if cerr := s.collect(ctx, tierLocal, 2*size); cerr != nil {
			return errors.Join(err, cerr)
		}
		err = s.write(ctx, name, e)
	case err != nil && s.clearPlace(ctx, name):
		err = s.write(ctx, name, e)
	}
	if err != nil {
		return err
	}
	s.counts.puts.Add(1)
	s.counts.wroteBytes.Add(uint64(size))
	if name.Class == ClassTail {
		s.trimTails(ctx, tierLocal, e.header)
	}
	s.afterGrowth(ctx)
	return nil
}

// stored reports whether the local tier holds a page whose header is good and
// whose sections are those of layout, and touches it. Anything else that has
// the name may be replaced.
func (s *Store) stored(ctx context.Context, name Name, layout Layout) bool {
	info, err := s.local.Stat(ctx, name)
	if err != nil {
		return false
	}
	h, err := s.headerOf(ctx, s.local, name)
	if err != nil {
		s.condemn(ctx, tierLocal, info, err)
		return false
	}
	if !h.layout.Equal(layout) {
		return false
	}
	s.touchInfo(ctx, tierLocal, name, info.Used)
	return true
}

// write stores an encoded page in the local tier and counts it.
func (s *Store) write(ctx context.Context, name Name, e *encodedPage) error {
	up, err := s.local.Create(ctx, name)
	if err != nil {
		return err
	}
	defer up.Abort()
	if err := e.writeTo(func(p []byte) error { return up.Write(ctx, p) }); err != nil {
		return err
	}
	return s.commitTo(ctx, tierLocal, up, time.Now())
}

// commitTo commits an upload and counts the file.
func (s *Store) commitTo(ctx context.Context, id tierID, up Upload, used time.Time) error {
	if id == tierLocal {
		s.commit.RLock()
		defer s.commit.RUnlock()
	}
	done, err := up.Commit(ctx, used)
	// A Commit that failed may have made the file visible all the same.
	if done.Bytes > 0 {
		s.usage[id].commit(done)
	}
	return err
}

// clearPlace moves something that is not a file out of a page's place and
// reports whether there was anything.
func (s *Store) clearPlace(ctx context.Context, name Name) bool {
	if _, err := s.local.Stat(ctx, name); !errors.Is(err, ErrNotFound) {
		return false
	}
	moved, err := s.local.Quarantine(ctx, name, "notregular")
	return moved && err == nil
}

// admit refuses a page that can never fit, and waits for a collection that has
// fallen behind so far that the tier would outgrow its budget by an eighth.
func (s *Store) admit(ctx context.Context, size int64) error {
	budget := s.opt.Local.BudgetBytes
	if budget == 0 {
		return nil
	}
	if size > budget {
		return fmt.Errorf("page of %d bytes in a budget of %d, raise it: %w", size, budget, ErrNoSpace)
	}
	limit := budget + budget/8 + 4*size
	if used, _ := s.usage[tierLocal].state(); used <= limit {
		return nil
	}
	s.requestCollection()
	ctx, cancel := context.WithTimeout(ctx, collectWait)
	defer cancel()
	_ = s.collecting.wait(ctx) // what counts is how much is used now
	if used, _ := s.usage[tierLocal].state(); used > limit {
		return fmt.Errorf("tier holds %d bytes, its budget is %d, and demotion is slower than new pages: %w", used, budget, ErrNoSpace)
	}
	return nil
}

// afterGrowth asks for a collection when the local tier may be over its limit
// or has not been counted for a while.
func (s *Store) afterGrowth(ctx context.Context) {
	over, err := s.excess(ctx, tierLocal)
	if err != nil || over > 0 || s.usage[tierLocal].stale(s.opt.Local.BudgetBytes) {
		s.requestCollection()
	}
}

// trimTails removes the tails that h, just stored, makes superfluous. Failures
// are left for the next tail.
func (s *Store) trimTails(ctx context.Context, id tierID, h *Header) {
	t := s.tier(id)
	infos, err := t.Tails(ctx, h.Fingerprint, h.Parent)
	if err != nil {
		return
	}
	slices.SortFunc(infos, func(a, b Info) int {
		return cmp.Or(b.Used.Compare(a.Used), slices.Compare(a.Key[:], b.Key[:]))
	})
	kept := 1
	for _, info := range infos {
		if info.Key == h.Key {
			continue
		}
		if kept < maxTails && !s.extends(ctx, t, info.Name, h) {
			kept++
			continue
		}
		s.drop(ctx, id, info)
	}
}

// trimCopied does so for a tail that was copied to a tier.
func (s *Store) trimCopied(ctx context.Context, id tierID, name Name) {
	if name.Class != ClassTail {
		return
	}
	if h, err := s.headerOf(ctx, s.tier(id), name); err == nil {
		s.trimTails(ctx, id, h)
	}
}

// extends reports whether h continues the tail stored at name.
func (s *Store) extends(ctx context.Context, t Tier, name Name, h *Header) bool {
	old, err := s.headerOf(ctx, t, name)
	if err != nil || len(old.Tokens) >= len(h.Tokens) {
		return false
	}
	n := len(old.Tokens)
	return commonPrefix(old.Tokens, old.Media, h.Tokens, h.Media) == n
}

// headerOf opens a page and reads its header, which belongs there.
func (s *Store) headerOf(ctx context.Context, t Tier, name Name) (*Header, error) {
	blob, err := t.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	h, err := readHeader(ctx, blob)
	if err != nil {
		return nil, err
	}
	if err := h.checkName(name); err != nil {
		return nil, err
	}
	return h, nil
}

// drop removes a file and stops counting it.
func (s *Store) drop(ctx context.Context, id tierID, info Info) bool {
	removed, err := s.tier(id).Remove(ctx, info.Name)
	if removed {
		s.usage[id].remove(info)
	}
	return err == nil
}

// Has reports whether the local tier holds the full page key. It costs one
// system call. It is no promise: Read may still fail.
func (s *Store) Has(key Key) bool {
	ctx, leave, err := s.life.enter(context.Background())
	if err != nil {
		return false
	}
	defer leave()
	_, err = s.local.Stat(ctx, s.pageName(key))
	return err == nil
}
