package guard

import (
	"context"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// findAtOnce is the number of batches looked up at the same time. A worker is left to other look-ups.
	findAtOnce = lookupWorkers - 1
)

// Find looks up one batch of names first, and then more at the same time: the results up to the last whole batch
// survive a timeout. The time limit holds for
// each round: a look-up of many names may take longer.
func (t *Tier) Find(ctx context.Context, names []pagefile.Name, leading bool) ([]tier.Info, error) {
	infos := make([]tier.Info, len(names))
	size := tier.FindAtOnce(t.Inner)
	for at, batches := 0, 1; at < len(names); batches = min(2*batches, findAtOnce) {
		end := min(len(names), at+batches*size)
		if err := t.findRound(ctx, names[at:end], infos[at:end], size, leading); err != nil {
			return infos, err
		}
		if leading && !infos[end-1].Found() {
			break
		}
		at = end
	}
	return infos, nil
}

// findRound looks up all names at the same time, in batches of a size, into infos. A batch that fails, and with
// leading one that is not wholly found, ends those after it. Those have twice the time, so that a
// tier that hangs fails once.
func (t *Tier) findRound(ctx context.Context, names []pagefile.Name, infos []tier.Info, size int, leading bool) error {
	type batch struct {
		infos []tier.Info
		done  chan error
	}
	var running []batch
	for limit, at := t.LookupIn, 0; at < len(names); limit, at = 2*t.LookupIn, at+size {
		end := min(len(names), at+size)
		b := batch{infos[at:end], make(chan error, 1)}
		running = append(running, b)
		mine, of := ctx, names[at:end]
		later, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			err := t.findBatch(mine, limit, of, b.infos, leading)
			if err != nil || leading && !b.infos[len(b.infos)-1].Found() {
				stop()
			}
			b.done <- err
		}()
		ctx = later
	}
	var failed error
	whole := true // all batches so far
	for _, b := range running {
		err := <-b.done // also after a failure, so that no goroutine stays
		switch {
		case !whole || failed != nil:
			clear(b.infos)
		case err != nil:
			failed = err
		default:
			whole = !leading || b.infos[len(b.infos)-1].Found()
		}
	}
	return failed
}

// findBatch looks up names in one operation, into infos. With leading, infos has nothing after the
// first missing file.
func (t *Tier) findBatch(ctx context.Context, limit time.Duration, names []pagefile.Name, infos []tier.Info, leading bool) error {
	found, err := do(ctx, t, t.Lookup, limit, nil, func(ctx context.Context) ([]tier.Info, error) {
		return t.Inner.Find(ctx, names, leading)
	})
	if missing := slices.IndexFunc(found, func(i tier.Info) bool { return !i.Found() }); leading && missing >= 0 {
		found = found[:missing]
	}
	copy(infos, found)
	return err
}
