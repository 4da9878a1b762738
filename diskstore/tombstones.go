package diskstore

import (
	"context"
	"errors"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/tombstones"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// tombstonesEvery bounds the time before a removal is written to a tier's list, together with
	// others. Writing costs at most tombstones.BytesMax, and no sync.
	tombstonesEvery = 5 * time.Second

	// remoteTombstonesEvery is the same for a remote tier, whose list is read as seldom: it would
	// take a slow tier's time from restores.
	remoteTombstonesEvery = time.Minute

	// gonePatience bounds the time that Gone takes.
	gonePatience = 5 * time.Second
)

// TombstoneReason is why a page left a tier.
type TombstoneReason byte

// Reasons. Lists have these numbers: never change one.
const (
	TombstoneRoom    TombstoneReason = 1 // a budget or the disk needed the room
	TombstoneRemoved TombstoneReason = 2 // kvtier gc, kvtier rm or ollama rm removed it
	TombstoneUnused  TombstoneReason = 3 // its fingerprint was not used any more
	TombstoneDamaged TombstoneReason = 4 // it went to quarantine
)

// String returns the reason in words.
func (r TombstoneReason) String() string {
	switch r {
	case TombstoneRoom:
		return "room was needed"
	case TombstoneRemoved:
		return "it was removed by command"
	case TombstoneUnused:
		return "its model or build was not used any more"
	case TombstoneDamaged:
		return "it was damaged"
	}
	return "for a reason that this version does not know"
}

// Tombstone tells of a page that has left a tier.
type Tombstone struct {
	When   time.Time
	Tier   string // Local or Remote
	Reason TombstoneReason
}

// noteGone notes that a page has left the tier. The list is written later, together with other pages.
func (lv *level) noteGone(name pagefile.Name, reason TombstoneReason) {
	lv.tombstones.Add(tombstones.Of(name.Key, lv.now(), byte(reason)))
	every := time.Duration(tombstonesEvery)
	if lv.far {
		every = remoteTombstonesEvery
	}
	lv.tombstoneClock.Start(every, func() {
		type tombstonesJob struct{ of *level }
		lv.recording.Submit(tombstonesJob{lv}, lv.recordTombstones)
	})
}

// recordTombstones writes new records to the tier's list. After a failure the next removal, or Close,
// tries again.
func (lv *level) recordTombstones(ctx context.Context) {
	fresh := lv.tombstones.Fresh()
	if fresh == 0 || !lv.answers() {
		return
	}
	ctx, cancel := unhurried(ctx, hitsPatience)
	defer cancel()
	_, err := lv.tier.Tombstones(ctx, func(content []byte) []byte { return lv.tombstones.Merge(content, lv.now()) })
	if err == nil {
		lv.tombstones.Written(fresh)
	}
}

// Failures returns the number of operations of each tier that have failed so far. A look-up during
// which one grows may have missed pages. Failures does no I/O.
func (s *Store) Failures() (local, remote uint64) {
	if s.remote != nil {
		remote = s.remote.counts.failed.Load()
	}
	return s.local.counts.failed.Load(), remote
}

// Gone explains pages that a look-up did not find, as far as known: by the latest removal of one of
// them, or that the file of one is in its place and failed its check. Gone reads a tier's list, and
// is called behind a request. ok is false where nothing is known.
func (s *Store) Gone(ctx context.Context, keys ...pagefile.Key) (found Tombstone, ok bool) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return found, false
	}
	defer leave()
	ctx, cancel := unhurried(ctx, gonePatience)
	defer cancel()
	if len(keys) == 0 {
		return found, false
	}
	for _, lv := range s.tiers {
		if !lv.answers() {
			continue
		}
		if info, err := lv.pages.Stat(ctx, lv.tier, keys[0]); err == nil && lv.checked.Bad.IsBad(info) {
			return Tombstone{When: s.now(), Tier: lv.name, Reason: TombstoneDamaged}, true
		}
		content, err := lv.tombstoneList(ctx)
		if err != nil && !errors.Is(err, tier.ErrNotFound) {
			lv.noteTierError(err)
		}
		if g, there := lv.tombstones.Find(content, keys); there && (!ok || g.When.After(found.When)) {
			found, ok = Tombstone{When: g.When, Tier: lv.name, Reason: TombstoneReason(g.Reason)}, true
		}
	}
	return found, ok
}

// tombstoneList returns the content of the tier's list; that of a remote tier as of the last minute.
func (lv *level) tombstoneList(ctx context.Context) ([]byte, error) {
	if !lv.far {
		return lv.tier.Tombstones(ctx, nil)
	}
	lv.tombstoneRead.Lock()
	defer lv.tombstoneRead.Unlock()
	if now := lv.now(); lv.tombstoneRead.at.IsZero() || now.Sub(lv.tombstoneRead.at).Abs() >= remoteTombstonesEvery {
		content, err := lv.tier.Tombstones(ctx, nil)
		if err != nil {
			return nil, err
		}
		lv.tombstoneRead.content, lv.tombstoneRead.at = content, now
	}
	return lv.tombstoneRead.content, nil
}

// unhurried returns a context that ends after some time, or with another one, and always as if its
// caller had left: a tier that has not answered a look-up behind a request by then has not failed.
func unhurried(parent context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, cancel)
	timer := time.AfterFunc(most, cancel)
	return ctx, func() {
		stop()
		timer.Stop()
		cancel()
	}
}
