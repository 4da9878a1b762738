package collect

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"

	"github.com/kvtier/kvtier/telemetry"
)

// own are the files of one Push. The lock is held from the first report on, and during a write that
// hangs also after the end: nobody adds a file to the totals that may yet be replaced.
type own struct {
	place  *place
	folder folder

	mu    sync.Mutex // held during a write
	ended bool
	name  string // of the files, without their ends
	lock  *held

	reported map[string]float64 // totals of the last report that was written
	folded   map[string]float64 // totals that were added to those of all under former names
	prompts  prompts
}

func newOwn(place *place, opt Options) *own {
	return &own{place: place, name: newName(), folder: folder{place: place, log: opt.Logger}, folded: make(map[string]float64)}
}

// newName names the files of one process. No other process ever has the same.
func newName() string { return "p-" + rand.Text() }

// write writes a report, the prompts first: a reader of the totals finds the prompts.
func (o *own) write(ctx context.Context, numbers *report, prompts *telemetry.Report) error {
	return o.place.do(ctx, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.ended {
			return errors.New("reports have ended")
		}
		if err := o.open(); err != nil {
			return err
		}
		for series, n := range o.folded {
			numbers.Totals[series] = max(0, numbers.Totals[series]-n)
		}
		data, err := encode(numbers)
		if err == nil {
			err = errors.Join(o.prompts.write(o.place, o.name+wordsEnd, prompts), o.place.replace(o.name+numbersEnd, data))
		}
		if err == nil {
			o.reported = numbers.Totals
		}
		return err
	})
}

// open takes the lock, also where a person has removed it. Without its lock, this process may have been
// added to the totals as one that has ended. It then goes on under another name, with what it has
// counted since.
func (o *own) open() error {
	if o.lock != nil && o.place.holds(o.lock) {
		return nil
	}
	first := o.reported == nil
	if !first {
		fold, err := o.place.lockFold(foldPatience)
		if err != nil {
			return err
		}
		defer fold.Close()
		t, _, err := o.place.readTotals()
		if err != nil {
			return err
		}
		if slices.Contains(t.Folded, o.name) {
			o.rename()
		}
	}
	if o.lock != nil {
		o.lock.Close()
	}
	var err error
	if o.lock, err = o.place.lock(o.name + ownEnd); err == nil && first {
		_ = o.folder.fold(o.place.collects()) // makes the totals; processes that are not added now stay for others
	}
	return err
}

func (o *own) rename() {
	for series, n := range o.reported {
		o.folded[series] += n
	}
	o.name, o.prompts.seq = newName(), 0
}

// end gives the files up, at once or as soon as a write that hangs has ended. A collector shows the
// prompts for a while; where none runs, they go.
func (o *own) end() {
	finish := func() {
		defer o.mu.Unlock()
		o.ended = true
		if o.lock == nil {
			return
		}
		if !o.place.collects() {
			_ = o.place.remove(o.name + wordsEnd) // else the next reader does
		}
		o.lock.Close()
		o.lock = nil
	}
	if o.mu.TryLock() {
		finish()
		return
	}
	go func() {
		o.mu.Lock()
		finish()
	}()
}
