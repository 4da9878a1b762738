package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/kvtier/kvtier/telemetry"
)

// prompts are the latest prompts of a process in their file. [Forget] puts an empty one in the
// place of that of a process that runs: prompts up to the next report, and Words of places that had
// changed by then, do not come back.
type prompts struct {
	name   string    // of the file that was written last
	seq    uint64    // of the last prompt that was written
	gone   uint64    // of the last one that was removed, or is in the file of a former name
	goneAt time.Time // of the last removal
}

const (
	// writePatience bounds the wait of a report for others who hold a lock.
	writePatience = 100 * time.Millisecond
	// forgetMost bounds the wait for a disk.
	forgetMost = time.Second
)

// takePrompts takes the prompts out of a report, into one that has nothing else. Those of a private
// request have no Words, and nothing is told of a namespace that JSON could give to another one.
func takePrompts(r *telemetry.Report) *telemetry.Report {
	p := &telemetry.Report{Version: r.Version, Process: r.Process, Started: r.Started, Model: r.Model}
	if utf8.ValidString(r.Model.Namespace) {
		p.Prompts = r.Prompts[max(0, len(r.Prompts)-telemetry.PromptsMax):]
		p.Busters = slices.Clone(r.Busters[:min(len(r.Busters), telemetry.BustersMax)])
	}
	withoutPrivateWords(p.Prompts)
	r.Prompts, r.Busters = nil, nil
	return p
}

func withoutPrivateWords(all []telemetry.Prompt) {
	for i, p := range all {
		if p.Private && p.Miss != nil {
			without := *p.Miss // reports share it
			without.Words = nil
			all[i].Miss = &without
		}
	}
}

// write replaces the file when there are new prompts, or it was removed, under the lock that Forget holds.
// What is in the file of a former name stays there, or was removed with it.
func (w *prompts) write(p *place, name string, r *telemetry.Report) error {
	if len(r.Prompts) == 0 {
		return nil
	}
	last := r.Prompts[len(r.Prompts)-1].Seq
	if w.seq == last && w.name == name && !w.removed(p, name) {
		return nil
	}
	lock, err := p.lockSoon(foldName, writePatience)
	if err != nil {
		return err
	}
	defer lock.Close()
	former := cmp.Or(w.name, name)
	if w.removed(p, former) || w.removed(p, name) {
		w.drop(r)
	} else if former != name {
		w.gone = max(w.gone, w.seq)
	}
	w.strip(r)
	data, err := encode(r)
	if err == nil {
		err = p.replace(name, data)
	}
	if err == nil {
		w.name, w.seq = name, last
	}
	return err
}

// drop notes that all prompts of a report, and Words of places that have changed by now, are removed.
func (w *prompts) drop(r *telemetry.Report) {
	for _, p := range r.Prompts {
		w.gone = max(w.gone, p.Seq)
	}
	w.goneAt = time.Now()
}

// removed reports whether Forget, or a person, has removed the file since it was written.
func (w *prompts) removed(p *place, name string) bool {
	info, err := p.fs.Lstat(p.path(name))
	return err == nil && info.Size() == 0 || errors.Is(err, fs.ErrNotExist) && w.name == name
}

func (w *prompts) strip(r *telemetry.Report) {
	r.Prompts = slices.DeleteFunc(r.Prompts, func(p telemetry.Prompt) bool { return p.Seq <= w.gone })
	for i, b := range r.Busters {
		if !w.goneAt.IsZero() && !b.Changed.After(w.goneAt) {
			r.Busters[i].Words = nil
		}
	}
}

// Forget removes the latest prompts, with their Words, of all processes whose models are picked. A
// process that runs goes on with the prompts behind its next report, and does not write earlier ones again.
// Where nothing tells the model of a process, it is asked for with the zero Model. A file that cannot be
// removed keeps no other one.
func Forget(ctx context.Context, root string, picks func(telemetry.Model) bool) error {
	p, err := newPlace(root)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, forgetMost)
	defer cancel()
	return until(ctx, forgets.of(p.root), 0, func() error {
		if _, err := p.fs.Lstat(p.dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		lock, err := p.lockSoon(foldName, forgetMost/2)
		if err != nil {
			return fmt.Errorf("remove prompts in %s: %w", p.dir, err)
		}
		defer lock.Close()
		names, err := p.list()
		for _, name := range names {
			err = errors.Join(err, p.forget(name, picks))
		}
		return err
	})
}

// forget removes the prompts of one process, also those that it was writing when it was killed. One that
// runs may have some in memory, so it gets an empty file: see prompts. A disk may be too full for that.
func (p *place) forget(name string, picks func(telemetry.Model) bool) error {
	e := p.examine(name)
	r, err := p.readReport(name + wordsEnd)
	switch {
	case err == nil:
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errContent) && !errors.Is(err, errVersion):
		return err
	case e.report != nil:
		r = e.report
	default:
		r = new(report)
	}
	if !picks(r.Model) {
		return nil
	}
	if err := p.remove(name + wordsEnd + tmpEnd); err != nil || e.ended {
		return errors.Join(err, p.remove(name+wordsEnd))
	}
	info, missing := p.fs.Lstat(p.path(name + wordsEnd))
	if missing == nil && info.Size() == 0 {
		return nil
	}
	err = p.replace(name+wordsEnd, nil)
	if err != nil && missing == nil { // the process knows that it wrote one
		err = p.remove(name + wordsEnd)
	}
	return err
}
