package collect

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/kvtier/kvtier/telemetry"
)

// prompts are the latest prompts of a process in a compressed file. [Forget] puts an empty one in the
// place of that of a process that runs: prompts up to then, and Words of places that changed then, do
// not come back.
type prompts struct {
	seq     uint64             // of the last prompt that is in the file
	removed time.Time          // when a file was removed, by the clock of its filesystem, and not later than now
	gone    uint64             // the last prompt that was in it: that clock, or this one, may have been wrong
	places  []telemetry.Buster // that changed then, or at an earlier removal
}

// clockTick is more than the time of a file is behind that of the clock.
const clockTick = 10 * time.Millisecond

// placesMax bounds the places that are remembered.
const placesMax = 4 * telemetry.BustersMax

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

// write replaces the file when there are new prompts, under the lock that Forget holds.
func (w *prompts) write(p *place, name string, r *telemetry.Report) error {
	if w.strip(r); len(r.Prompts) == 0 || w.seq == lastOf(r) {
		return nil
	}
	lock, err := p.lockFold(foldPatience)
	if err != nil {
		return err
	}
	defer lock.Close()
	info, err := p.fs.Lstat(p.path(name))
	switch {
	case err == nil && info.Size() == 0:
		w.noteRemoved(info.ModTime().Add(clockTick), r)
	case errors.Is(err, fs.ErrNotExist) && w.seq > 0: // by a person
		w.noteRemoved(time.Now(), r)
	}
	var data bytes.Buffer
	text, err := encode(r)
	if err == nil {
		z := gzip.NewWriter(&data)
		_, err = z.Write(text)
		err = errors.Join(err, z.Close())
	}
	if err == nil {
		err = p.replace(name, data.Bytes())
	}
	if err == nil && len(r.Prompts) > 0 { // else the removal is noted once, and the next prompt is told
		w.seq = lastOf(r)
	}
	return err
}

func lastOf(r *telemetry.Report) uint64 { return r.Prompts[len(r.Prompts)-1].Seq }

// noteRemoved notes when the file was removed, and leaves all up to then out of a report.
func (w *prompts) noteRemoved(at time.Time, r *telemetry.Report) {
	if now := time.Now(); at.After(now) {
		at = now
	}
	if at.After(w.removed) || w.seq > w.gone {
		w.removed, w.gone, w.places = at, w.seq, append(w.places, r.Busters...)
		w.places = w.places[max(0, len(w.places)-placesMax):]
	}
	w.strip(r)
}

func (w *prompts) strip(r *telemetry.Report) {
	if w.removed.IsZero() {
		return
	}
	r.Prompts = slices.DeleteFunc(r.Prompts, func(p telemetry.Prompt) bool { return p.Seq <= w.gone || !p.At.After(w.removed) })
	for i, b := range r.Busters {
		if slices.ContainsFunc(w.places, func(was telemetry.Buster) bool { return b.Words == was.Words }) {
			r.Busters[i].Words = nil
		}
	}
}

// readPrompts reads a file of prompts.
func (p *place) readPrompts(name string) (*report, error) {
	data, err := p.read(name, telemetry.ReportBytesMax)
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(z, telemetry.ReportBytesMax))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errContent, err)
	}
	return decodeReport(data)
}
