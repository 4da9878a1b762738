package diskstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// A tier without a budget leaves 1/reserveShare of its filesystem free.
	reserveShare = 20

	// Once over budget, a tier is brought 1/slackShare below it, so that the
	// next page does not set off the next collection.
	slackShare = 16

	// A remote tier that is full before its budget is used up is made to free
	// the room of this many pages at once.
	demoteRoom = 8

	// remoteCountEvery is how old the count of the remote tier may get.
	remoteCountEvery = 10 * time.Minute
)

// requestCollection brings both tiers within their limits in the background.
func (s *Store) requestCollection() {
	type collectJob struct{}
	s.collecting.submit(collectJob{}, func(ctx context.Context) {
		// The whole root may have been deleted under the store.
		_ = s.ensureManifest(ctx, s.local)
		if err := s.collect(ctx, tierLocal, 0); err != nil {
			s.noteTierError(tierLocal, err)
		}
		if s.remote == nil || s.remote.breaker.down() {
			return
		}
		_, counted := s.usage[tierRemote].state()
		over, err := s.excess(ctx, tierRemote)
		if err == nil && (over > 0 || time.Since(counted) > remoteCountEvery) {
			_ = s.collect(ctx, tierRemote, 0) // counted by the tier
		}
	})
}

// excess returns by how many bytes a tier is over its limit as far as is known
// without counting; 0 when it is not.
func (s *Store) excess(ctx context.Context, id tierID) (int64, error) {
	if budget := s.config(id).BudgetBytes; budget > 0 {
		used, _ := s.usage[id].state()
		return max(0, used-budget), nil
	}
	space, err := s.tier(id).Space(ctx)
	if err != nil {
		return 0, err
	}
	return max(0, space.Total/reserveShare-space.Free), nil
}

// count lists a tier and takes over what it holds.
func (s *Store) count(ctx context.Context, id tierID) ([]Info, error) {
	if id == tierLocal {
		s.commit.Lock()
		defer s.commit.Unlock()
	}
	infos, err := s.tier(id).List(ctx)
	if err != nil {
		return nil, err
	}
	s.usage[id].set(infos)
	return infos, nil
}

// collect brings a tier within its limit and frees at least the given number of
// bytes. While another process collects the same tier it only counts. Readers
// never wait for it.
func (s *Store) collect(ctx context.Context, id tierID, atLeast int64) error {
	select {
	case s.collectors[id] <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.collectors[id] }()
	release, err := s.tier(id).Lock(ctx)
	if err != nil && !errors.Is(err, ErrLocked) {
		return err
	}
	infos, cerr := s.count(ctx, id)
	if err != nil { // locked by another
		return cerr
	}
	defer release()
	if cerr != nil {
		return cerr
	}
	over, err := s.excess(ctx, id)
	if err != nil {
		return err
	}
	if budget := s.config(id).BudgetBytes; over > 0 && budget > 0 {
		over += budget / slackShare
	}
	if over = max(over, atLeast); over <= 0 {
		return nil
	}
	for _, victim := range s.evictionOrder(ctx, s.tier(id), infos) {
		if over <= 0 || ctx.Err() != nil {
			break
		}
		if s.evict(ctx, id, victim) {
			over -= victim.Physical
		}
	}
	return ctx.Err()
}

// evict moves a page down a tier, or deletes it where there is none or the page
// cannot be moved. It reports whether the page is gone from the tier.
func (s *Store) evict(ctx context.Context, id tierID, info Info) bool {
	demoted := false
	if id == tierLocal && s.remote != nil && !s.remote.breaker.down() {
		err := s.demote(ctx, info)
		if errors.Is(err, ErrNoSpace) && s.collect(ctx, tierRemote, demoteRoom*info.Physical) == nil {
			err = s.demote(ctx, info)
		}
		switch {
		case err == nil:
			demoted = true
		case ctx.Err() != nil:
			return false // closing: the page stays where it is
		case s.localIsBad(err):
			s.condemn(ctx, id, info, err)
			return true
		}
	}
	if !s.drop(ctx, id, info) {
		return false
	}
	if demoted {
		s.counts.demoted.Add(1)
	} else {
		s.counts.evicted.Add(1)
	}
	return true
}

// localIsBad reports whether a demotion failed because of the local page.
func (s *Store) localIsBad(err error) bool {
	var side *copyError
	return errors.As(err, &side) && side.side == s.local && (errors.Is(err, ErrDamaged) || errors.Is(err, ErrMismatch))
}

// demote makes the remote tier hold a page of the local one. Only after it has
// returned nil may the local page go.
func (s *Store) demote(ctx context.Context, info Info) error {
	if there, err := s.remote.Stat(ctx, info.Name); err == nil && there.Bytes == info.Bytes {
		return nil
	}
	if err := s.copyManifest(ctx, info.Fingerprint); err != nil {
		return err
	}
	err := copyPage(ctx, s.local, s.remote, info.Name, func(up Upload) error {
		return s.commitTo(ctx, tierRemote, up, info.Used)
	})
	if err != nil {
		return err
	}
	there, err := s.remote.Stat(ctx, info.Name)
	if err != nil {
		return err
	}
	if there.Bytes != info.Bytes {
		return fmt.Errorf("copy of page %v is %d bytes, want %d", info.Key, there.Bytes, info.Bytes)
	}
	s.trimCopied(ctx, tierRemote, info.Name)
	return nil
}

// link is where a page stands in its chain.
type link struct {
	parent Key
	start  uint32
}

// linkCache remembers the links of pages, which never change.
type linkCache struct {
	mu    sync.Mutex
	byKey map[Key]link
}

// maxLinks bounds the cache; beyond it everything is forgotten.
const maxLinks = 1 << 18

// linkOf returns a page's place in its chain. For a page whose header cannot be
// read it is one that nothing depends on; reading it will show why.
func (s *Store) linkOf(ctx context.Context, t Tier, name Name) link {
	if name.Class == ClassTail {
		return link{parent: name.Parent, start: math.MaxUint32}
	}
	s.links.mu.Lock()
	l, ok := s.links.byKey[name.Key]
	s.links.mu.Unlock()
	if ok {
		return l
	}
	h, err := s.headerOf(ctx, t, name)
	if err != nil {
		return link{}
	}
	l = link{parent: h.Parent, start: h.Start}
	s.links.mu.Lock()
	defer s.links.mu.Unlock()
	if len(s.links.byKey) >= maxLinks {
		clear(s.links.byKey)
	}
	s.links.byKey[name.Key] = l
	return l
}

// evictionOrder sorts files so that those to go come first: the least recently
// used, and always every page before its parent. A page counts as used when any
// page that continues it was.
func (s *Store) evictionOrder(ctx context.Context, t Tier, infos []Info) []Info {
	type node struct {
		Info
		link
		used int64
	}
	nodes := make([]*node, len(infos))
	pages := make(map[Key]*node, len(infos))
	for i, info := range infos {
		nodes[i] = &node{Info: info, link: s.linkOf(ctx, t, info.Name), used: info.Used.UnixNano()}
		if info.Class == ClassPage {
			pages[info.Key] = nodes[i]
		}
	}
	// Deepest first, so that each page has heard of all that continue it before
	// it tells its own parent. A tail's position is beyond that of any page.
	slices.SortFunc(nodes, func(a, b *node) int { return cmp.Compare(b.start, a.start) })
	for _, n := range nodes {
		if parent := pages[n.link.parent]; parent != nil && parent != n {
			parent.used = max(parent.used, n.used)
		}
	}
	slices.SortFunc(nodes, func(a, b *node) int {
		return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(b.start, a.start), slices.Compare(a.Key[:], b.Key[:]))
	})
	order := make([]Info, len(nodes))
	for i, n := range nodes {
		order[i] = n.Info
	}
	return order
}
