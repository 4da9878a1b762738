package diskstore

import (
	"context"
	"errors"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/graves"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// gravesEvery bounds the time before a removal is written to a tier's list, together with
	// others. Writing costs at most graves.BytesMax, and no sync.
	gravesEvery = 5 * time.Second

	// remoteGravesEvery is the same for a remote tier, whose list is read as seldom: it would
	// take a slow tier's time from restores.
	remoteGravesEvery = time.Minute

	// gonePatience bounds the time that Gone takes.
	gonePatience = 5 * time.Second
)

// GraveReason is why a page left a tier.
type GraveReason byte

// Reasons. Lists have these numbers: never change one.
const (
	GraveRoom    GraveReason = 1 // a budget or the disk needed the room
	GraveRemoved GraveReason = 2 // kvtier gc, kvtier rm or ollama rm removed it
	GraveUnused  GraveReason = 3 // its fingerprint was not used any more
	GraveDamaged GraveReason = 4 // it went to quarantine
)

// String returns the reason in words.
func (r GraveReason) String() string {
	switch r {
	case GraveRoom:
		return "room was needed"
	case GraveRemoved:
		return "it was removed by command"
	case GraveUnused:
		return "its model or build was not used any more"
	case GraveDamaged:
		return "it was damaged"
	}
	return "for a reason that this version does not know"
}

// Grave tells of a page that has left a tier.
type Grave struct {
	When   time.Time
	Tier   string // Local or Remote
	Reason GraveReason
}

// bury notes that a page has left the tier. The list is written later, together with other pages.
func (lv *level) bury(name pagefile.Name, reason GraveReason) {
	lv.graves.Add(graves.Of(name.Key, lv.now(), byte(reason)))
	every := time.Duration(gravesEvery)
	if lv.far {
		every = remoteGravesEvery
	}
	lv.graveClock.Start(every, func() {
		type gravesJob struct{ of *level }
		lv.recording.Submit(gravesJob{lv}, lv.recordGraves)
	})
}

// recordGraves writes new records to the tier's list. After a failure the next removal, or Close,
// tries again.
func (lv *level) recordGraves(ctx context.Context) {
	fresh := lv.graves.Fresh()
	if fresh == 0 || !lv.answers() {
		return
	}
	ctx, cancel := unhurried(ctx, hitsPatience)
	defer cancel()
	_, err := lv.tier.Graves(ctx, func(content []byte) []byte { return lv.graves.Merge(content, lv.now()) })
	if err == nil {
		lv.graves.Written(fresh)
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
func (s *Store) Gone(ctx context.Context, keys ...pagefile.Key) (found Grave, ok bool) {
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
		if info, err := lv.pages.Stat(ctx, lv.tier, keys[0]); err == nil && lv.checked.Verdicts.IsBad(info) {
			return Grave{When: s.now(), Tier: lv.name, Reason: GraveDamaged}, true
		}
		content, err := lv.graveList(ctx)
		if err != nil && !errors.Is(err, tier.ErrNotFound) {
			lv.noteTierError(err)
		}
		if g, there := lv.graves.Find(content, keys); there && (!ok || g.When.After(found.When)) {
			found, ok = Grave{When: g.When, Tier: lv.name, Reason: GraveReason(g.Reason)}, true
		}
	}
	return found, ok
}

// graveList returns the content of the tier's list; that of a remote tier as of the last minute.
func (lv *level) graveList(ctx context.Context) ([]byte, error) {
	if !lv.far {
		return lv.tier.Graves(ctx, nil)
	}
	lv.graveRead.Lock()
	defer lv.graveRead.Unlock()
	if now := lv.now(); lv.graveRead.at.IsZero() || now.Sub(lv.graveRead.at).Abs() >= remoteGravesEvery {
		content, err := lv.tier.Graves(ctx, nil)
		if err != nil {
			return nil, err
		}
		lv.graveRead.content, lv.graveRead.at = content, now
	}
	return lv.graveRead.content, nil
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
