package diskstore

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

const (
	// hitsEvery bounds the time before a hit is recorded, together with others. Recording
	// costs two syncs.
	hitsEvery = 5 * time.Second

	// remoteHitsEvery is the same for a remote tier, whose ledger all servers share. Any other
	// change of the ledger records the hits, too.
	remoteHitsEvery = 10 * time.Minute

	// hitsPatience bounds the time that Flush, or a job between two collections, waits for a
	// tier to record hits.
	hitsPatience = time.Second
)

// hit counts a page of a fingerprint that was read from a tier, or from memory as a copy of the
// tier's page.
func (lv *level) hit(fingerprint pagefile.Key) {
	lv.book.Hit(fingerprint)
	every := time.Duration(hitsEvery)
	if lv.far {
		every = remoteHitsEvery
	}
	lv.hitClock.Start(every, func() {
		type hitsJob struct{ of *level }
		lv.recording.Submit(hitsJob{lv}, lv.recordHits)
	})
}

// recordHits records new hits. After a failure the next hit tries again.
func (lv *level) recordHits(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hitsPatience)
	defer cancel()
	if lv.book.UnrecordedHits() && lv.answers() {
		_ = lv.book.Record(ctx)
	}
}
