package diskstore

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// hitsEvery bounds the time before a hit is recorded, together with others. Recording
	// costs two syncs.
	hitsEvery = 5 * time.Second

	// hitsPatience bounds the time that Flush, or a job between two collections, waits for a
	// tier to record hits.
	hitsPatience = time.Second
)

// hit counts a page that was read from a tier, or from memory as a copy of the tier's page.
func (lv *level) hit() {
	lv.s.counts.hits.Add(1)
	lv.book.Hit(lv.s.opt.Fingerprint)
	lv.s.hitClock.Start(hitsEvery, func() {
		type hitsJob struct{}
		lv.s.local.collecting.Submit(hitsJob{}, lv.s.recordHits)
	})
}

// recordHits records new hits. After a failure the next hit tries again.
func (s *Store) recordHits(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hitsPatience)
	defer cancel()
	for _, lv := range s.levels(tier.Local) {
		if lv.book.UnrecordedHits() && lv.answers() {
			_ = lv.book.Record(ctx)
		}
	}
}
