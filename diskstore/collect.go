package diskstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

const (
	// A tier without a budget leaves 1/reserveShare of its filesystem free. With less free
	// space, a collection frees 1/slackShare of that share in addition.
	reserveShare = 20

	// A tier above its budget, or less than 1/trimShare below it, is collected down to
	// 1/slackShare below the budget, so that the next page need not wait. A tier below its
	// budget keeps files used within recency.TouchEvery. If such files are all that is left, the next
	// trim of the tier waits for touchEvery.
	trimShare  = 32
	slackShare = 16

	// A collection of a full remote filesystem frees room for this many pages at once.
	demoteRoom = 8

	// remoteCountEvery is the largest age of the remote tier's count.
	remoteCountEvery = 10 * time.Minute

	// Evicted files are recorded in batches; the room of a recorded batch can be used.
	batchFiles = 256
	batchBytes = ledger.ChunkBytes
)

var (
	// errExhausted reports that a collection could not make the wanted room.
	errExhausted = errors.New("diskstore: nothing was used before the page that needs room")

	// errOvertaken is an errExhausted of a collection during which files came into use that it would
	// have evicted, or others took the room that it made. Another collection may make room.
	errOvertaken = fmt.Errorf("%w when the collection began", errExhausted)

	// errSlowBelow reports that the remote tier has not made room yet.
	errSlowBelow = errors.New("diskstore: the remote tier takes long to make room")

	// errStays reports that a page was not evicted: the tier below does not take the page now,
	// and the need for room is too small to delete the page.
	errStays = errors.New("diskstore: the page cannot move down now")
)

// nearlyFull reports whether figure bytes are so close to a budget that a tier is trimmed.
func nearlyFull(figure, budget int64) bool { return figure > budget-budget/trimShare }

// demand is the goal of a collection in addition to keeping a tier within its budget.
type demand struct {
	room   int64     // bytes that must fit in the budget
	disk   int64     // bytes to free, independent of the budget
	before time.Time // only files last used earlier are evicted for room and disk

	// after has the places of the pages that need the room. The pages before these places stay
	// and have been moved up to the recency of a chain used at used.
	after []recency.Place
	used  time.Time

	// young is the start of the last touchEvery: a tier that is only nearly full keeps files
	// used since.
	young time.Time
}

// demandAt returns the demand of a page at a place, with the page's recency.
func demandAt(at recency.Place, recent time.Time) demand {
	return demand{before: recent, after: []recency.Place{at}, used: recency.Used(recent, at.Start)}
}

// join returns a demand that satisfies both.
func (d demand) join(o demand) demand {
	d.room, d.disk = max(d.room, o.room), max(d.disk, o.disk)
	if o.before.After(d.before) {
		d.before = o.before
	}
	if d.after = append(d.after, o.after...); o.used.After(d.used) {
		d.used = o.used
	}
	return d
}

// requestCollection brings both tiers within their limits in the background.
func (s *Store) requestCollection(want demand) {
	s.wantMu.Lock()
	s.want = s.want.join(want)
	s.wantMu.Unlock()
	type collectJob struct{}
	s.local.collecting.Submit(collectJob{}, func(ctx context.Context) {
		s.wantMu.Lock()
		want := s.want
		s.want = demand{}
		s.wantMu.Unlock()
		writing := s.local.book.InFlight() > 0
		err := s.local.collect(ctx, want)
		// Without a count the state is unknown; the next collection may count. A page that is being
		// written can be evicted once it is there.
		writing = writing || s.local.book.InFlight() > 0
		s.exhausted.Store(err != nil && !errors.Is(err, ledger.ErrNotCounted) && !errors.Is(err, errOvertaken) && !writing)
		if err != nil && !errors.Is(err, errExhausted) && !errors.Is(err, ledger.ErrNotCounted) {
			s.local.noteTierError(err)
		}
		if s.remote == nil || !s.remote.answers() {
			return
		}
		// In another queue: listing over a network takes minutes, and Put waits for the queue
		// of the local tier.
		s.remote.collecting.Submit(collectJob{}, func(ctx context.Context) {
			_ = s.remote.collect(ctx, demand{}) // the tier counts errors
		})
	})
}

// shortage returns the number of bytes that must be evicted from a tier, as known without a
// listing, and before: only files last used earlier are evicted, or any files if before is
// zero. A caller that ignores before may leave want.young unset.
func (lv *level) shortage(ctx context.Context, want demand) (over int64, before time.Time, err error) {
	budget := lv.book.Budget
	if budget == 0 {
		short, slack, err := lv.reserve(ctx)
		if err != nil {
			return 0, time.Time{}, err
		}
		if short > 0 {
			return max(short+slack, want.disk), time.Time{}, nil
		}
		return want.disk, want.before, nil
	}
	figure, known := lv.book.Figure()
	if !known {
		return want.disk, want.before, nil
	}
	low := budget - budget/slackShare
	alone := lv.alone()
	if alone {
		low = budget - lv.outageBatch(ctx)
	}
	switch {
	case figure > budget:
		return max(figure-low, want.disk), time.Time{}, nil
	case figure+want.room > budget:
		return max(figure+want.room-low, want.disk), want.before, nil
	case want.disk > 0:
		return want.disk, want.before, nil
	case nearlyFull(figure, budget) && !alone && !lv.trimmed.within(recency.TouchEvery, lv.s.now()):
		return figure - low, want.young, nil
	}
	return 0, time.Time{}, nil
}

// reserve returns the bytes by which a tier's filesystem has less free space than a tier
// without a budget leaves, and the bytes to free in addition, so that not every further page
// needs a listing.
func (lv *level) reserve(ctx context.Context) (short, slack int64, err error) {
	space, err := lv.tier.Space(ctx)
	if err != nil {
		return 0, 0, err
	}
	left := space.Total / reserveShare
	if lv.alone() {
		return left - space.Free, left / outageShare, nil
	}
	return left - space.Free, left / slackShare, nil
}

// youngSince returns demand.young: touchEvery ago by the earlier of this machine's clock and
// the filesystem's. With the filesystem's clock unknown, youngSince returns a time before all
// files.
func (lv *level) youngSince(ctx context.Context) time.Time {
	now, err := lv.ageClock(ctx)
	if err != nil {
		lv.noteTierError(err)
		return time.Unix(0, 0)
	}
	return now.Add(-recency.TouchEvery)
}

// mustGo returns the part of the bytes missing from a tier that must be evicted even by
// deleting pages that should move down.
func (lv *level) mustGo(ctx context.Context, over int64, want demand) int64 {
	budget := lv.book.Budget
	if lv != lv.s.local || lv.s.remote == nil {
		return over
	}
	if budget == 0 {
		short, _, err := lv.reserve(ctx)
		if err != nil {
			return over
		}
		return max(min(short, over), want.disk)
	}
	figure, known := lv.book.Figure()
	if !known {
		return want.disk
	}
	return max(figure+want.room-budget, want.disk)
}

// stale reports whether a tier's files need a new count. A count by any process serves.
func (lv *level) stale() bool {
	every := time.Duration(countEvery)
	if lv == lv.s.remote {
		every = remoteCountEvery
	}
	counted, took := lv.files.Counted()
	if other := lv.book.Counted(); other.After(counted) {
		counted = other
	}
	if _, known := lv.book.Figure(); !known && lv.book.Budget > 0 {
		return time.Since(counted) > max(countAgain, 10*took) // the ledger is lost, or cannot be written
	}
	return countDue(time.Since(counted), took, every)
}

// countDue reports whether a count of some age, which took some time, is too old.
func countDue(age, took, every time.Duration) bool { return age > max(every, countPause*took) }

// collect brings a tier within its limit and makes the wanted room, as far as possible.
// Readers never wait for a collection.
func (lv *level) collect(ctx context.Context, want demand) error {
	select {
	case lv.collector <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-lv.collector }()
	if want.room > 0 { // other processes may have filled the tier since this process looked
		if err := lv.book.Look(ctx); err != nil {
			return err
		}
	}
	if want.disk > 0 && lv == lv.s.local {
		if space, err := lv.tier.Space(ctx); err == nil {
			lv.s.crowded.note(want.disk, space.Free, lv.s.now())
		}
	}
	over, _, err := lv.shortage(ctx, want)
	if err != nil {
		return err
	}
	if over <= 0 && !lv.stale() {
		return lv.uncounted(ctx, want)
	}
	release, err := lv.lockTier(ctx, want)
	if errors.Is(err, tier.ErrLocked) {
		if lv.stale() {
			_, err := lv.files.Count(ctx, nil)
			return err
		}
		// The process that holds the lock collects.
		return lv.stillShort(ctx, want)
	}
	if err != nil {
		return err
	}
	defer lv.sweepBranches(ctx) // after the release: others collect meanwhile
	defer release()
	return lv.collectLocked(ctx, want)
}

// lockTier locks the tier for collecting. While another process has the lock, lockTier waits,
// but only during a shortage, and at most for roomWait.
func (lv *level) lockTier(ctx context.Context, want demand) (release func(), err error) {
	wait, cancel := context.WithTimeout(ctx, roomWait)
	defer cancel()
	for {
		release, err := lv.tier.Lock(ctx)
		if !errors.Is(err, tier.ErrLocked) || errors.Is(err, tier.ErrNotShared) { // waiting does not help against another machine
			return release, err
		}
		if lv.book.Refresh(ctx) != nil {
			return nil, err
		}
		if over, _, serr := lv.shortage(ctx, want); serr != nil || over <= 0 {
			return nil, err
		}
		timer := time.NewTimer(lockPoll)
		select {
		case <-timer.C:
		case <-wait.Done():
			timer.Stop()
			return nil, err
		}
	}
}

// collectLocked counts and evicts, with the tier's lock held. A collection that needs more
// victims than one listing yields lists again.
func (lv *level) collectLocked(ctx context.Context, want demand) error {
	want.young = lv.youngSince(ctx)
	guess, before, err := lv.shortage(ctx, want)
	if err != nil {
		return err
	}
	pick, late := newVictims(guess, before), recency.NewFutures(ctx, lv.tier, lv.s.now, lv.noteTierError)
	found, err := lv.files.Count(ctx, func(info tier.Info) {
		pick.add(info)
		late.Add(info)
	})
	if err != nil {
		return err
	}
	over, before, err := lv.shortage(ctx, want)
	if err != nil {
		return err
	}
	if over <= 0 {
		return lv.uncounted(ctx, want)
	}
	if found.Aside.QuarantineFiles > 0 && !before.After(want.before) {
		if over -= lv.emptyQuarantine(ctx); over <= 0 {
			return lv.book.Record(ctx)
		}
	}
	moved := late.Believe(ctx)
	if moved {
		lv.s.chains.Forget()
	}
	if len(want.after) > 0 && (moved || late.Newest.After(want.used)) {
		want.before = lv.s.chains.MoveUp(ctx, late.Newest, want.after...)
		if over, before, err = lv.shortage(ctx, want); err != nil {
			return err
		}
	}
	if moved || over > guess || !before.Equal(pick.before) { // or the first shortage was unknown
		pick = newVictims(over, before)
		if err := lv.files.List(ctx, pick.add); err != nil {
			return err
		}
	}
	due, made := lv.lacking(want), int64(0)
	for {
		freed, end := lv.evictAll(ctx, pick.order(lv.placeOf(ctx)), over, lv.mustGo(ctx, over, want))
		if freed < over && !before.After(want.before) { // perhaps the victims could not be removed
			freed += lv.emptyQuarantine(ctx)
		}
		made += freed
		if over -= freed; over <= 0 || ctx.Err() != nil {
			return ctx.Err()
		}
		if freed == 0 || end.stays || !pick.more {
			if before.Equal(want.young) {
				lv.trimmed.note(lv.s.now()) // no other file is old before touchEvery has passed
			}
			err := lv.stillShort(ctx, want)
			if errors.Is(err, errExhausted) && (end.cameIntoUse || made >= due) {
				return errOvertaken
			}
			return err
		}
		pick = newVictims(over, before)
		if err := lv.files.List(ctx, pick.add); err != nil {
			return err
		}
	}
}

// uncounted returns ledger.ErrNotCounted when the tier's files are not counted, so that nobody knows
// whether there is the wanted room.
func (lv *level) uncounted(ctx context.Context, want demand) error {
	if _, known := lv.book.Figure(); !known && lv.book.Budget > 0 && want.room > 0 {
		return ledger.ErrNotCounted
	}
	return ctx.Err()
}

// stillShort returns errExhausted when a tier lacks the wanted room, and ledger.ErrNotCounted when
// the tier's files are not counted.
func (lv *level) stillShort(ctx context.Context, want demand) error {
	err := lv.uncounted(ctx, want)
	if err == nil && lv.book.Budget > 0 && want.room > 0 && lv.lacking(want) > 0 {
		return errExhausted
	}
	return err
}

// lacking is by how many bytes a tier has too little room in its budget, as far as known.
func (lv *level) lacking(want demand) int64 {
	figure, _ := lv.book.Figure()
	return figure + want.room - lv.book.Budget
}

// emptyQuarantine removes the files in quarantine. These files are kept, for a person to look
// at, only while there is space.
func (lv *level) emptyQuarantine(ctx context.Context) int64 {
	counts := lv.book.Counts()
	freed, err := lv.files.Tier.EmptyQuarantine(ctx)
	if err != nil {
		lv.noteTierError(err)
		return 0
	}
	lv.book.Release(freed, counts)
	return freed
}

// passedOver has the reasons for which evictAll left files in their tier.
type passedOver struct {
	stays       bool // pages that should move down and cannot; evictAll ended with the first
	cameIntoUse bool // since they were listed
}

// evictAll evicts files in order until at least `bytes` bytes are free, and returns the number
// of freed bytes. Pages that should move down and cannot are deleted only for the first `must`
// bytes, and during an outage for one batch in addition; the other pages stay.
func (lv *level) evictAll(ctx context.Context, infos []tier.Info, bytes, must int64) (freed int64, left passedOver) {
	batch := lv.files.NewRemoval()
	for _, info := range infos {
		if freed+batch.Bytes >= bytes || ctx.Err() != nil {
			break
		}
		// A page used since the listing may have become another page's parent.
		if now, err := lv.tier.Stat(ctx, info.Name); err != nil || !now.Used.Equal(info.Used) {
			left.cameIntoUse = left.cameIntoUse || err == nil
			continue
		}
		due := must
		if due > 0 && lv.alone() {
			due += lv.outageBatch(ctx)
		}
		removed, err := lv.evict(ctx, info, freed+batch.Bytes < due)
		if left.stays = errors.Is(err, errStays); left.stays {
			break
		}
		left.cameIntoUse = left.cameIntoUse || errors.Is(err, tier.ErrReplaced)
		if err != nil {
			continue
		}
		batch.Add(removed)
		lv.book.EvictedUpTo(info.Used)
		if len(batch.Names) >= batchFiles || batch.Bytes >= batchBytes {
			freed += batch.Bytes
			batch.Record(ctx)
			batch = lv.files.NewRemoval()
		}
	}
	freed += batch.Bytes
	batch.Record(ctx)
	return freed, left
}

// evict moves a page to the tier below, or deletes the page: without a tier below, with no
// room there, or with must. evict returns the removed file. The result is empty for a page
// that went to quarantine, where it needs as much room, and for a file that another process
// removed.
//
// evict returns tier.ErrReplaced for a page that came into use while a move down failed, or made the
// page lossy: other pages may continue it now, so it stays. evict returns errStays for a page that stays until the
// tier below takes pages again.
func (lv *level) evict(ctx context.Context, info tier.Info, must bool) (removed tier.Info, err error) {
	demoted, drop := false, lv.files.DropUnused
	if lv == lv.s.local && lv.s.remote != nil {
		lossy, err := lv.s.moveDown(ctx, info)
		switch {
		case err == nil:
			lv.s.refused.clear()
			demoted = true
			if !lossy {
				drop = lv.files.Drop // a page that came into use is found below
			}
		case ctx.Err() != nil:
			return removed, ctx.Err() // the store closes, and the page stays in its tier
		case lv.s.localSide(err, pagefile.ErrDamaged), lv.s.localSide(err, pagefile.ErrMismatch):
			bad := judged(err, info)
			lv.checked.Condemn(ctx, bad, err)
			if !must || !lv.checked.Verdicts.IsBad(bad) && !isForeign(err) {
				return removed, nil
			}
			info = bad // the file stays in its place, is useless here, and its room is needed
		case errors.Is(err, tier.ErrNoSpace) && !lv.s.remote.futile.is(time.Now()), lv.s.localSide(err, tier.ErrNotFound):
		default:
			lv.s.refused.note(time.Now())
			if !must {
				return removed, errStays
			}
		}
	}
	removed, err = drop(ctx, info)
	if err != nil || removed.Bytes == 0 {
		return removed, err
	}
	if demoted {
		lv.s.counts.demoted.Add(1)
	} else {
		lv.counts.evicted.Add(1)
		lv.bury(removed.Name, GraveRoom)
	}
	lv.leaves(info, demoted)
	return removed, nil
}

// isForeign reports whether a copy failed because another program wrote the page, in a format
// that this one does not read.
func isForeign(err error) bool {
	var wrongPlace *pagefile.Misplaced
	return errors.Is(err, pagefile.ErrMismatch) && !errors.As(err, &wrongPlace)
}

// moveDown demotes a page, and first makes room below if necessary. lossy reports that the page is
// exact, and lossy in the remote tier. moveDown returns tier.ErrNoSpace when the remote tier holds no
// page used earlier.
func (s *Store) moveDown(ctx context.Context, info tier.Info) (lossy bool, err error) {
	d, err := s.descend(ctx, info)
	if err != nil {
		return false, err
	}
	err = s.lower(ctx, d)
	if !errors.Is(err, tier.ErrNoSpace) && !errors.Is(err, ledger.ErrNotCounted) {
		return d.lossy, err
	}
	want := demand{room: d.bytes(), before: info.Used}
	if vfs.IsNoSpace(err) {
		if s.remote.futile.is(time.Now()) {
			return false, err
		}
		want.disk = demoteRoom * pagefile.AlignUp(d.bytes())
	}
	switch cerr := s.makeRoomBelow(ctx, want); {
	case errors.Is(cerr, errExhausted):
		return false, err
	case cerr != nil:
		return false, cerr
	}
	if err = s.lower(ctx, d); want.disk > 0 && vfs.IsNoSpace(err) {
		s.remote.futile.note(time.Now())
	}
	return d.lossy, err
}

// makeRoomBelow collects the remote tier in that tier's own queue, and waits a bounded time: a
// listing over a network takes minutes, and Puts wait for the local tier. While an earlier call
// goes on, makeRoomBelow does not wait again.
func (s *Store) makeRoomBelow(ctx context.Context, want demand) error {
	if s.roomBelow.Swap(true) {
		return errSlowBelow
	}
	done := make(chan error, 1)
	type roomJob struct{}
	s.remote.collecting.Submit(roomJob{}, func(ctx context.Context) {
		err := s.remote.collect(ctx, want)
		s.roomBelow.Store(false)
		done <- err
	})
	patience := time.NewTimer(max(roomWait/2, s.opt.RemoteTimeout))
	defer patience.Stop()
	select {
	case err := <-done:
		return err
	case <-patience.C:
		return errSlowBelow
	case <-ctx.Done():
		return ctx.Err()
	}
}

// localSide reports whether a demotion failed because of the local page, with an error of the
// given kind.
func (s *Store) localSide(err, kind error) bool {
	var side *copyError
	return errors.As(err, &side) && side.side == s.disk && errors.Is(err, kind)
}
