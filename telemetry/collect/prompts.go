package collect

import (
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
	seq    uint64             // of the last prompt that was written
	gone   uint64             // of the last one that was removed
	places []telemetry.Buster // that had changed by then, or by an earlier removal
}

const (
	// placesMax bounds the places that are remembered.
	placesMax = 4 * telemetry.BustersMax
	// writePatience bounds the wait of a report for others who hold the lock on prompts.
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
func (w *prompts) write(p *place, name string, r *telemetry.Report) error {
	if len(r.Prompts) == 0 {
		return nil
	}
	last := r.Prompts[len(r.Prompts)-1].Seq
	if w.seq == last && !w.removed(p, name) {
		return nil
	}
	lock, err := p.lockFold(writePatience)
	if err != nil {
		return err
	}
	defer lock.Close()
	if w.removed(p, name) {
		w.gone, w.places = last, append(w.places, r.Busters...)
		w.places = w.places[max(0, len(w.places)-placesMax):]
	}
	w.strip(r)
	data, err := encode(r)
	if err == nil {
		err = p.replace(name, data)
	}
	if err == nil {
		w.seq = last
	}
	return err
}

// removed reports whether Forget, or a person, has removed the file since it was written.
func (w *prompts) removed(p *place, name string) bool {
	info, err := p.fs.Lstat(p.path(name))
	return err == nil && info.Size() == 0 || errors.Is(err, fs.ErrNotExist) && w.seq > 0
}

// strip leaves out what was removed.
func (w *prompts) strip(r *telemetry.Report) {
	r.Prompts = slices.DeleteFunc(r.Prompts, func(p telemetry.Prompt) bool { return p.Seq <= w.gone })
	for i, b := range r.Busters {
		if slices.ContainsFunc(w.places, func(was telemetry.Buster) bool { return b.Words == was.Words }) {
			r.Busters[i].Words = nil
		}
	}
}

// Forget removes the latest prompts, with their Words, of all processes whose models are picked. A
// process that runs goes on with the prompts behind its next report, and does not write earlier ones again.
// A file that does not tell its model is asked for with the zero Model. A file that cannot be removed keeps no other one.
func Forget(ctx context.Context, root string, picks func(telemetry.Model) bool) error {
	p, err := newPlace(root)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, forgetMost)
	defer cancel()
	return until(ctx, 0, func() error {
		if _, err := p.fs.Lstat(p.dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		lock, err := p.lockFold(forgetMost / 2)
		if err != nil {
			return fmt.Errorf("remove prompts in %s: %w", p.dir, err)
		}
		defer lock.Close()
		names, err := p.list()
		if err != nil {
			return err
		}
		for _, name := range names {
			if failed := p.forget(name, picks); !errors.Is(failed, fs.ErrNotExist) { // it has ended meanwhile
				err = errors.Join(err, failed)
			}
		}
		return err
	})
}

// forget removes the prompts of one process. One that runs may have some in memory, so it gets an
// empty file: see prompts.
func (p *place) forget(name string, picks func(telemetry.Model) bool) error {
	e := p.examine(name)
	r, err := p.readReport(name + wordsEnd)
	if errors.Is(err, fs.ErrNotExist) && e.report != nil {
		r, err = e.report, nil
	}
	if errors.Is(err, errContent) {
		r, err = new(report), nil
	}
	if err != nil || !picks(r.Model) {
		return err
	}
	if !e.ended {
		return p.replace(name+wordsEnd, nil)
	}
	return p.remove(name + wordsEnd)
}
