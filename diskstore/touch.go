package diskstore

import (
	"context"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// fresh reports whether a chain used at the given time counts as just used.
func (lv *level) fresh(used, now time.Time) bool { return recency.Fresh(used, now, lv.book.Horizon()) }

// touch touches the file of ref in a tier, whose recency in that tier is recent. The remote
// tier is touched in the background, in the order of reading.
func (r *reader) touch(ctx context.Context, lv *level, ref Ref, recent time.Time) {
	now := r.now()
	if ref.Ahead || lv.fresh(recency.Used(recent, ref.Start), now) {
		return
	}
	used := time.Unix(0, ref.at)
	if !lv.fresh(used, now) { // found long ago, or not as a chain
		used = now
	}
	name := ref.name(r.pages)
	if lv.far {
		type touch struct{ pagefile.Name }
		r.behind.Submit(touch{name}, func(ctx context.Context) {
			r.mover.Forward(ctx, name, recency.Of(used, ref.Start))
		})
		return
	}
	r.chains.Touch(ctx, name, ref.place(), used)
}

// ageClock returns the time by which files count as old enough to delete.
func (lv *level) ageClock(ctx context.Context) (time.Time, error) {
	now, err := recency.AgeClock(ctx, lv.tier, lv.now)
	if err != nil {
		return now, fmt.Errorf("tell the time of the filesystem of %s: %w", lv.where, err)
	}
	return now, nil
}

const (
	// hitsEvery bounds the time before a hit is recorded, together with others. Recording costs two syncs.
	hitsEvery = 5 * time.Second

	// remoteHitsEvery is the same for a remote tier, whose ledger all servers share. Any other
	// change of the ledger records the hits, too.
	remoteHitsEvery = 10 * time.Minute

	// hitsPatience bounds the time that Flush, or a job between two collections, waits for a
	// tier to record hits.
	hitsPatience = time.Second
)

// hit counts a page of a fingerprint that was read from a tier, or from memory as a copy of the tier's page.
func (lv *level) hit(fingerprint pagefile.Key) {
	lv.book.Hit(fingerprint)
	lv.recordIn(&lv.hitClock, hitsEvery, remoteHitsEvery, lv.recordHits)
}

// recordIn records something of the tier after some time, which differs in a remote tier. Calls before
// that have no effect.
func (lv *level) recordIn(clock *work.Once, every, remoteEvery time.Duration, record func(context.Context)) {
	if lv.far {
		every = remoteEvery
	}
	clock.Start(every, func() { lv.recording.Submit(clock, record) })
}

// recordHits records new hits. After a failure the next hit tries again.
func (lv *level) recordHits(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hitsPatience)
	defer cancel()
	if lv.book.State().Hits && lv.answers() {
		_ = lv.book.Record(ctx)
	}
}
