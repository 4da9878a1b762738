package counted

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// listAgain is the number of times that a count lists one shard of a far tier.
const listAgain = 5

// Usage is the files of one fingerprint.
type Usage struct {
	Pages, Tails int
	Bytes        int64     // physical
	LastUsed     time.Time // zero when there is no page
}

// Tally is the result of a count of a tier.
type Tally struct {
	Known        []pagefile.Key // all fingerprints, also those without files
	Fingerprints map[pagefile.Key]*Usage
	Bytes        int64 // physical, of pages and tails
	Fleeting     int64 // physical, of files replaced or removed, not yet durably
	Aside        tier.Aside
}

// Total is the number of bytes found that no process has claimed.
func (t *Tally) Total() int64 {
	return t.Bytes + t.Fleeting + t.Aside.OrphanBytes + t.Aside.QuarantineBytes
}

func (t *Tally) add(info tier.Info) {
	use := t.Fingerprints[info.Fingerprint]
	if use == nil {
		use = new(Usage)
		t.Fingerprints[info.Fingerprint] = use
	}
	if info.Class == pagefile.ClassTail {
		use.Tails++
	} else {
		use.Pages++
	}
	use.Bytes += info.Physical
	t.Bytes += info.Physical
	use.LastUsed = tier.Later(use.LastUsed, info.Used)
}

// Count lists a tier, shard by shard, replaces the tier's numbers, and calls each, which may
// be nil, for every file.
func (t *Tier) Count(ctx context.Context, each func(tier.Info)) (*Tally, error) {
	select {
	case t.counting <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-t.counting }()
	began, berr := t.Book.BeginCount(ctx)
	aside, err := t.Tier.Aside(ctx)
	if err != nil {
		return nil, err
	}
	began.Living, began.Held = aside.Living, aside.Held
	t.use.prepare()
	defer t.use.abandon()
	fingerprints, shards, err := t.Tier.Survey(ctx)
	if err != nil {
		return nil, err
	}
	t.use.begin(shards) // a file in a shard made later is counted when the file appears
	recent := t.First.begin(t.opt)
	found := &Tally{Known: fingerprints, Fingerprints: make(map[pagefile.Key]*Usage)}
	for _, shard := range shards {
		infos, err := t.countShard(ctx, shard)
		if err != nil {
			return nil, err
		}
		t.hand(infos, func(info tier.Info) {
			found.add(info)
			recent.add(info)
			if each != nil {
				each(info)
			}
		})
	}
	if found.Aside, err = t.Tier.Aside(ctx); err != nil {
		return nil, err
	}
	// Bytes that this process adds from here on are not in the count.
	release := t.Hold()
	found.Bytes, found.Fleeting = t.use.end(time.Since(began.Began))
	began.Listed = t.Book.State().Added
	release()
	for _, use := range found.Fingerprints {
		began.Pages += int64(use.Pages)
	}
	if berr == nil {
		_ = t.Book.EndCount(ctx, began, found.Total())
	} else {
		_ = t.Book.Refresh(ctx) // another machine may have counted, if this one may not write
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t.First.end(found, recent)
	return found, nil
}

func (t *Tier) hand(infos []tier.Info, each func(tier.Info)) {
	for _, info := range infos {
		each(info)
		if t.Listed != nil {
			t.Listed()
		}
	}
}

// countShard lists one shard. This process adds and removes no file of the tier meanwhile, so
// that the count is exact.
func (t *Tier) countShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if t.opt.Far {
		return t.countFarShard(ctx, shard)
	}
	defer t.Hold()()
	infos, err := t.Tier.ListShard(ctx, shard)
	if err == nil {
		t.use.listed(shard, infos)
	}
	return infos, err
}

// errChanging reports a shard that changed during each of its listings.
var errChanging = errors.New("diskstore: files are added or removed as fast as they are listed")

// countFarShard does as countShard for a tier whose listing may take long or hang: this process
// goes on adding and removing files, and a shard that changed meanwhile is listed again.
func (t *Tier) countFarShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	for range listAgain {
		t.use.look(shard)
		infos, err := t.Tier.ListShard(ctx, shard)
		if err != nil {
			return infos, err
		}
		release := t.Hold() // a file that appears now is counted when it has appeared
		same := t.use.same(shard)
		if same {
			t.use.listed(shard, infos)
		}
		release()
		if same {
			return infos, nil
		}
	}
	return nil, fmt.Errorf("list shard %02x of %v: %w", shard.First, shard.Fingerprint, errChanging)
}

// List calls each for every file of the tier without counting.
func (t *Tier) List(ctx context.Context, each func(tier.Info)) error {
	_, shards, err := t.Tier.Survey(ctx)
	if err != nil {
		return err
	}
	return t.listShards(ctx, shards, each)
}

// listShards does as List for some shards.
func (t *Tier) listShards(ctx context.Context, shards []tier.Shard, each func(tier.Info)) error {
	for _, shard := range shards {
		if err := ctx.Err(); err != nil {
			return err
		}
		infos, err := t.Tier.ListShard(ctx, shard)
		if err != nil {
			return err
		}
		t.hand(infos, each)
	}
	return nil
}

// Look counts the tier's files without writing, and leaves all numbers as they are.
func (t *Tier) Look(ctx context.Context) (*Tally, error) {
	fingerprints, shards, err := t.Tier.Survey(ctx)
	if err != nil {
		return nil, err
	}
	found := &Tally{Known: fingerprints, Fingerprints: make(map[pagefile.Key]*Usage)}
	if err := t.listShards(ctx, shards, found.add); err != nil {
		return nil, err
	}
	found.Aside, err = t.Tier.Aside(ctx)
	return found, err
}

// Counted returns the end and the duration of this process's last count; zero before the first.
func (t *Tier) Counted() (time.Time, time.Duration) {
	t.use.mu.Lock()
	defer t.use.mu.Unlock()
	return t.use.when, t.use.took
}

// Backdate makes the last count as old as age, and one that took as long as took. Tests of rare counts
// need it.
func (t *Tier) Backdate(age, took time.Duration) {
	t.use.mu.Lock()
	defer t.use.mu.Unlock()
	t.use.when, t.use.took = time.Now().Add(-age), took
}

// Holding returns the tier's number of full pages, of tails, and their physical bytes, as far as this
// process knows.
func (t *Tier) Holding() (pages, tails int, bytes int64) {
	t.use.mu.Lock()
	defer t.use.mu.Unlock()
	return t.use.files.pages, t.use.files.tails, t.use.files.bytes
}
