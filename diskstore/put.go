package diskstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/branch"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

const (
	// roomWait bounds the time that a Put waits for room.
	roomWait = 5 * time.Second

	// lockPoll is the interval at which a process checks whether another has made room.
	lockPoll = 50 * time.Millisecond
)

// Put stores a page in the local tier, as a tail when the page is shorter than
// Options.PageTokens. After Put has returned nil, the page survives a power cut, unless
// Options.LazyNames is set. Put is idempotent: a page that is stored already, by its header, is not written again.
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

func (s *Store) put(ctx context.Context, p *pagefile.Page, meek bool) error {
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
	name := s.pageName(p.Key())
	if len(p.Tokens) < s.opt.PageTokens {
		name = s.tailName(name.Key)
	}
	err = s.putName(ctx, name, p, meek)
	if err == nil {
		s.health.note("put", nil)
		return nil
	}
	if vfs.IsNoSpace(err) {
		err = fmt.Errorf("%w (%w)", err, tier.ErrNoSpace)
	}
	s.counts.putErrors.Add(1)
	if ctx.Err() == nil && !meek && !errors.Is(err, ledger.ErrWriteCap) {
		s.counts.tierErrors.Add(1)
		s.health.note("put", err)
	}
	return fmt.Errorf("put page %v: %w", name.Key, err)
}

// encoder is the codec of new pages, nil where they stay as they are.
func (s *Store) encoder() *pagefile.Codec {
	if s.opt.Compress {
		return s.codec
	}
	return nil
}

func (s *Store) putName(ctx context.Context, name pagefile.Name, p *pagefile.Page, meek bool) error {
	if h := s.stored(ctx, name, p, meek); h != nil {
		if err := s.local.persist(ctx, tier.Committed{Info: tier.Info{Name: name}}); err != nil {
			return err
		}
		_, err := s.local.addBranch(ctx, h)
		return err
	}
	p.ClearGaps()
	e, err := pagefile.Encode(s.opt.Fingerprint, s.opt.PageTokens, p, s.encoder())
	if err != nil {
		return err
	}
	size := e.Header.FileBytes
	at := position{parent: p.Parent, start: p.Start}
	find := s.makeRoom
	if meek {
		find = s.spareRoom
	}
	err = s.write(ctx, name, e, at, find)
	if vfs.IsNoSpace(err) && !meek && !s.local.futile.is(time.Now()) {
		// Twice the size, because directories need space as well, and some filesystems free
		// the space of removed files only later.
		collectCtx, cancel := context.WithTimeout(ctx, roomWait)
		want := demandAt(at, s.moveUp(ctx, at))
		want.disk = 2 * pagefile.AlignUp(size)
		cerr := s.local.collect(collectCtx, want)
		cancel()
		if cerr != nil {
			return errors.Join(err, cerr)
		}
		if err = s.write(ctx, name, e, at, find); vfs.IsNoSpace(err) {
			s.local.futile.note(time.Now())
		}
	}
	if err != nil {
		return err
	}
	s.local.futile.clear()
	s.counts.puts.Add(1)
	s.counts.rawBytes.Add(uint64(len(p.Payload)))
	s.counts.wroteBytes.Add(uint64(size))
	s.local.keepInRAM(tier.Info{Name: name, Bytes: size, Used: time.Now()}, e.Header, p.Payload, "")
	s.afterGrowth(ctx)
	return s.local.linkIn(ctx, e.Header)
}

// stored returns the header of an exact page with the sections of p that the local tier holds, and
// nil for none. Unless meek is set, stored touches the page. Any other file of that name may be
// replaced.
func (s *Store) stored(ctx context.Context, name pagefile.Name, p *pagefile.Page, meek bool) *pagefile.Header {
	info, err := s.disk.Stat(ctx, name)
	if err != nil {
		return nil
	}
	h, _, err := s.local.checkedHeader(ctx, name)
	if err != nil || h.Lossy() {
		return nil
	}
	if _, ok := p.Layout.Within(h.Layout); !ok {
		return nil
	}
	if now := s.now(); !meek && !s.local.fresh(chainUsed(info.Used, p.Start), now) {
		s.touchLocal(ctx, name, position{parent: p.Parent, start: p.Start}, now)
	}
	return h
}

// errUnreachable reports a page that no look-up could find: the page before it is not stored.
var errUnreachable = fmt.Errorf("the page it continues is not stored: %w", tier.ErrNoSpace)

// roomFor reserves room for a file of n bytes at a place in the local tier, and returns the
// recency of the file.
type roomFor func(ctx context.Context, n int64, at position) (*ledger.Room, time.Time, error)

// write reserves room with find, stores an encoded page in the local tier, and counts the
// page.
func (s *Store) write(ctx context.Context, name pagefile.Name, e *pagefile.Encoded, at position, find roomFor) error {
	room, used, err := find(ctx, e.Header.FileBytes, at)
	if err != nil {
		return err
	}
	defer room.Cancel()
	if err := s.local.upload(ctx, name, e, room, used); err != nil {
		return err
	}
	if name.Class == pagefile.ClassPage {
		s.links.put(name.Key, link{parent: at.parent, start: at.start, used: chainUsed(used, at.start)})
	}
	return nil
}

// upload stores an encoded page durably in its reserved room, and counts the file.
func (lv *level) upload(ctx context.Context, name pagefile.Name, e *pagefile.Encoded, room *ledger.Room, used time.Time) error {
	up, err := lv.tier.Create(ctx, name)
	if err != nil {
		return err
	}
	defer func() { room.Wasted(up.Written()) }() // no effect after the upload became a file
	defer up.Abort()
	if err := e.WriteTo(func(p []byte) error { return up.Write(ctx, p) }); err != nil {
		return err
	}
	return lv.commitTo(ctx, up, room, used)
}

// makeRoom is a roomFor that, without room, waits for the eviction of files used before this
// one.
func (s *Store) makeRoom(ctx context.Context, n int64, at position) (r *ledger.Room, used time.Time, err error) {
	b := s.local.book
	if b.Budget > 0 && pagefile.AlignUp(n) > b.Budget {
		return nil, used, fmt.Errorf("page of %d bytes in a budget of %d, raise it: %w", n, b.Budget, tier.ErrNoSpace)
	}
	wait, cancel := context.WithTimeout(ctx, roomWait)
	defer cancel()
	var done <-chan struct{} // of the requested collection
	for last, rounds := false, 0; ; {
		changed := b.Changes()
		r, err = b.Reserve(ctx, n)
		s.capped.note(err)
		full := errors.Is(err, tier.ErrNoSpace) && !vfs.IsNoSpace(err)
		switch {
		case err == nil && used.IsZero():
			return r, recency(s.chainTime(ctx, at, s.now()), at.start), nil
		case !full && !errors.Is(err, ledger.ErrNotCounted):
			return r, used, err
		case last:
			return nil, used, fmt.Errorf("%w (%w)", err, tier.ErrNoSpace)
		case done == nil && !s.reachable(ctx, at):
			return nil, used, errUnreachable
		case done == nil:
			used = s.moveUp(ctx, at)
			want := demandAt(at, used)
			want.room = pagefile.AlignUp(n)
			s.requestCollection(want)
			done = s.local.collecting.Done()
		}
		select {
		case <-changed:
		case <-done:
			// Another Put may have taken the room.
			last, done = s.exhausted.Load(), nil
			if rounds++; errors.Is(err, ledger.ErrNotCounted) || rounds > 1 {
				waitAny(wait, changed, countAgain/4)
			}
		case <-wait.Done():
			last = true
		}
	}
}

// spareRoom is a roomFor that evicts nothing and leaves enough room that no later eviction
// follows from this file.
func (s *Store) spareRoom(ctx context.Context, n int64, at position) (*ledger.Room, time.Time, error) {
	b, used := s.local.book, s.now()
	if !s.reachable(ctx, at) {
		return nil, used, errUnreachable
	}
	if b.Budget == 0 {
		switch short, _, err := s.local.reserve(ctx); {
		case err != nil:
			return nil, used, err
		case short+pagefile.AlignUp(n) > 0:
			return nil, used, fmt.Errorf("no room to spare on the filesystem: %w", tier.ErrNoSpace)
		}
	}
	r, err := b.Reserve(ctx, n)
	s.capped.note(err)
	if errors.Is(err, ledger.ErrNotCounted) {
		err = fmt.Errorf("%w (%w)", err, tier.ErrNoSpace)
	}
	if err != nil {
		return nil, used, err
	}
	if figure, known := b.Figure(); b.Budget > 0 && (!known || nearlyFull(figure, b.Budget)) {
		r.Cancel()
		return nil, used, fmt.Errorf("no room to spare in a budget of %d: %w", b.Budget, tier.ErrNoSpace)
	}
	if l, ok := s.localLink(ctx, at.parent); ok && at.start > 0 && !l.used.IsZero() {
		used = l.used
	}
	return r, recency(used, at.start), nil
}

// waitAny returns when the ledger has changed, after atMost, or when ctx ends.
func waitAny(ctx context.Context, changed <-chan struct{}, atMost time.Duration) {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// reachable reports whether look-ups can find a page once stored: no other page is evicted for
// an unreachable one.
func (s *Store) reachable(ctx context.Context, at position) bool {
	if at.start == 0 {
		return true
	}
	for _, lv := range s.levels(tier.Local) {
		if _, err := lv.statPage(ctx, at.parent); err == nil {
			return true
		}
	}
	return false
}

// commitTo makes an upload a durable file in its reserved room, and counts the file. Counts,
// evictions and other uploads wait for the rename alone, not for the syncs before and after it.
func (lv *level) commitTo(ctx context.Context, up tier.Upload, room *ledger.Room, used time.Time) error {
	if err := up.Seal(ctx); err != nil {
		return err
	}
	done, err := lv.appear(ctx, up, room, used)
	if err != nil {
		return err
	}
	defer lv.use.settled(done)
	if lv == lv.s.local {
		ctx = context.WithoutCancel(ctx) // a visible page is stored, even if the caller has left
		// Only now: a removal that takes the manifest looks for pages after that.
		_ = lv.s.describe(ctx, lv.tier, done.Name.Fingerprint)
	}
	return lv.persist(ctx, done)
}

// persist makes the name of a visible file durable, unless Options.LazyNames leaves that to the
// filesystem. A replaced file must not come back in a power cut, because its bytes do not count
// any more.
func (lv *level) persist(ctx context.Context, done tier.Committed) error {
	if lv.s.opt.LazyNames && !done.Replaced {
		return nil
	}
	return lv.tier.Persist(ctx, done.Name)
}

// appear makes a sealed upload visible and counts the file. The caller makes the file's name
// durable, and calls settled after that.
func (lv *level) appear(ctx context.Context, up tier.Upload, room *ledger.Room, used time.Time) (tier.Committed, error) {
	lv.commit.RLock()
	defer lv.commit.RUnlock()
	done, err := up.Commit(ctx, used)
	// A failed Commit may have made the file visible nevertheless.
	if done.Bytes > 0 {
		lv.verdicts.replaced(done.Name)
		lv.use.commit(done)
		room.Finish(done.Physical)
	}
	if err != nil {
		lv.use.settled(done)
	}
	return done, err
}

// appearedLate counts a file of the remote tier that appeared after its Commit was given up.
func (s *Store) appearedLate(done tier.Committed) {
	s.remote.commit.RLock()
	defer s.remote.commit.RUnlock()
	s.remote.verdicts.replaced(done.Name)
	s.remote.use.commit(done)
	s.remote.use.settled(done)
	s.remote.book.Appeared(done.Physical)
}

// afterGrowth requests a collection when the local tier is near its limit or its last count is
// old.
func (s *Store) afterGrowth(ctx context.Context) {
	over, _, err := s.local.shortage(ctx, demand{})
	if err != nil || over > 0 || s.local.stale() {
		s.requestCollection(demand{})
	}
}

// dropExtended removes the tails that h, just stored, makes superfluous, of those that begin like
// it. The next tail's Put retries failures.
func (lv *level) dropExtended(ctx context.Context, h *pagefile.Header, met []branch.Candidate) {
	gone := lv.newRemoval()
	drop := func(info tier.Info) bool {
		removed, err := lv.drop(ctx, info)
		if err == nil {
			gone.add(removed)
		}
		return err == nil
	}
	for _, c := range met {
		if !c.Whole() || c.Class != pagefile.ClassTail || !lv.s.extends(ctx, lv.tier, c.Name(), h) {
			continue
		}
		if info, err := lv.tier.Stat(ctx, c.Name()); err == nil && drop(info) {
			lv.noteTierError(lv.tier.RemoveBranch(ctx, c.Branch))
		}
	}
	for _, info := range lv.oldTails(ctx, h.Fingerprint, h.Parent) {
		if info.Key == h.Key || lv.s.extends(ctx, lv.tier, info.Name, h) {
			drop(info)
		}
	}
	gone.settle(ctx)
}

// extends reports whether h continues the tail stored at name and has all of its sections. A
// state belongs to one position, so a longer tail has another state.
func (s *Store) extends(ctx context.Context, t tier.Tier, name pagefile.Name, h *pagefile.Header) bool {
	old, err := s.headerOf(ctx, t, name)
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

// headerOf opens a page, reads its header and checks the page's name.
func (s *Store) headerOf(ctx context.Context, t tier.Tier, name pagefile.Name) (*pagefile.Header, error) {
	blob, err := t.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	h, err := pagefile.ReadHeader(ctx, blob)
	if err != nil {
		return nil, err
	}
	if err := h.CheckName(name); err != nil {
		return nil, err
	}
	return h, nil
}

// drop removes a file and stops counting it. removed describes the file, with 0 bytes when
// another process removed the file first. The room is free after the removal has settled. A
// file that was replaced after info was read stays, and drop returns tier.ErrReplaced.
func (lv *level) drop(ctx context.Context, info tier.Info) (removed tier.Info, err error) {
	return lv.dropIf(ctx, info, func(now tier.Info) bool { return now.Bytes == info.Bytes })
}

// dropUnused does as drop, and also keeps a file that was used after info was read.
func (lv *level) dropUnused(ctx context.Context, info tier.Info) (removed tier.Info, err error) {
	return lv.dropIf(ctx, info, func(now tier.Info) bool { return now.Bytes == info.Bytes && now.Used.Equal(info.Used) })
}

// dropIf does as drop for a file whose present Info satisfies same.
func (lv *level) dropIf(ctx context.Context, info tier.Info, same func(now tier.Info) bool) (removed tier.Info, err error) {
	none := tier.Info{Name: info.Name}
	lock := sync.Locker(&lv.commit)
	if lv == lv.s.remote { // the remote tier may hang, and other operations do not wait
		lock = lv.commit.RLocker()
	}
	lock.Lock()
	defer lock.Unlock()
	now, err := lv.tier.Stat(ctx, info.Name)
	if errors.Is(err, tier.ErrNotFound) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	if !same(now) {
		return none, tier.ErrReplaced
	}
	ours, err := lv.tier.Remove(ctx, now)
	if !ours {
		return none, err
	}
	lv.use.remove(now)
	lv.copies.forget(now.Name)
	lv.branches.removed(now.Name)
	return now, err
}

// Has reports whether the local tier holds the full page key, exact, and no Read has found the page
// damaged. Has costs one system call. Read may fail nevertheless.
func (s *Store) Has(key pagefile.Key) bool {
	ctx, leave, err := s.life.Enter(context.Background())
	if err != nil {
		return false
	}
	defer leave()
	info, err := s.disk.Stat(ctx, s.pageName(key))
	return err == nil && !s.local.verdicts.isBad(info)
}
