package collect

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"reflect"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/kvtier/kvtier/telemetry"
)

// own are the files of one Push. The lock is held from the first report on, and during a write that
// hangs also after the end: nobody adds a file to the totals that may yet be replaced.
type own struct {
	place  *place
	folder folder
	name   string

	mu    sync.Mutex // held during a write
	ended bool
	lock  *held

	words   []byte // the content of the file of prompts; nil before the first
	written *telemetry.Report
	removed removed
}

func newOwn(place *place, opt Options) *own {
	return &own{place: place, name: newName(), folder: folder{place: place, log: opt.Logger, now: opt.now}}
}

// write writes a report, the prompts first: a reader of the totals finds the prompts.
func (o *own) write(ctx context.Context, numbers []byte, prompts *telemetry.Report) error {
	return o.place.do(ctx, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.ended {
			return errStopped
		}
		if err := o.open(); err != nil {
			return err
		}
		err := o.writePrompts(prompts)
		return errors.Join(err, replace(o.place.fs, o.place.path(o.name+numbersEnd), numbers))
	})
}

// errStopped reports a write after the end.
var errStopped = errors.New("reports have ended")

// open takes the lock, also where a person has removed it.
func (o *own) open() error {
	if o.lock != nil && o.place.holds(o.lock) {
		return nil
	}
	if o.lock != nil {
		o.lock.Close()
		o.lock = nil
	}
	lock, err := o.place.lock(o.name + ownEnd)
	if err != nil {
		return err
	}
	o.lock = lock
	o.folder.past = collects(o.place.dir)
	_ = o.folder.fold() // makes the totals; processes that are not added now stay for others
	return nil
}

// writePrompts writes the prompts if they have changed. Words that were in a file which somebody has
// removed do not come back.
func (o *own) writePrompts(prompts *telemetry.Report) error {
	path := o.place.path(o.name + wordsEnd)
	o.removed.strip(prompts)
	data, err := encode(prompts)
	if err != nil || bytes.Equal(data, o.words) || o.words == nil && len(prompts.Prompts) == 0 && len(prompts.Busters) == 0 {
		return err
	}
	if _, err := o.place.fs.Lstat(path); o.words != nil && errors.Is(err, fs.ErrNotExist) {
		o.removed.note(o.written)
		o.removed.strip(prompts)
		if data, err = encode(prompts); err != nil {
			return err
		}
	}
	if err := replace(o.place.fs, path, data); err != nil {
		return err
	}
	o.words, o.written = data, prompts
	return nil
}

// removed are the Words that somebody has removed, with the pages of the model.
type removed struct {
	seq   uint64             // of the last prompt
	words []*telemetry.Words // of places that change
}

// note notes the Words of a report that was written.
func (w *removed) note(r *telemetry.Report) {
	for _, p := range r.Prompts {
		w.seq = max(w.seq, p.Seq)
	}
	for _, b := range r.Busters {
		if b.Words != nil {
			w.words = append(w.words, b.Words)
		}
	}
	w.words = w.words[max(0, len(w.words)-removedMax):]
}

// removedMax bounds the Words that are remembered.
const removedMax = 4 * telemetry.BustersMax

// strip leaves the removed Words out of a report.
func (w *removed) strip(r *telemetry.Report) {
	for i, p := range r.Prompts {
		if p.Seq <= w.seq {
			r.Prompts[i].Miss = withoutWords(p.Miss)
		}
	}
	for i, b := range r.Busters {
		if slices.ContainsFunc(w.words, func(was *telemetry.Words) bool { return reflect.DeepEqual(b.Words, was) }) {
			r.Busters[i].Words = nil
		}
	}
}

func withoutWords(m *telemetry.Miss) *telemetry.Miss {
	if m == nil {
		return nil
	}
	without := *m // reports share it
	without.Words = nil
	return &without
}

// promptsIn takes the prompts out of a report, into one that has nothing else. Those of a private
// request have no Words, and nothing is told of a namespace that JSON could give to another one.
func promptsIn(r *telemetry.Report) *telemetry.Report {
	p := &telemetry.Report{Version: r.Version, Process: r.Process, Started: r.Started, Model: r.Model}
	if utf8.ValidString(r.Model.Namespace) {
		p.Prompts = r.Prompts[max(0, len(r.Prompts)-telemetry.PromptsMax):]
		p.Busters = append([]telemetry.Buster(nil), r.Busters[:min(len(r.Busters), telemetry.BustersMax)]...)
	}
	for i := range p.Prompts {
		if p.Prompts[i].Private {
			p.Prompts[i].Miss = withoutWords(p.Prompts[i].Miss)
		}
	}
	r.Prompts, r.Busters = nil, nil
	return p
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
		if !collects(o.place.dir) {
			_ = remove(o.place.fs, o.place.path(o.name+wordsEnd)) // else the next reader does
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
