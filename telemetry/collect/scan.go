package collect

import (
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/proc"
)

// orphanAge is the age at which a file counts as that of a process that has ended, where no lock
// tells. A process that runs writes its file more often.
const orphanAge = 24 * time.Hour

// entry is what the files of one process tell.
type entry struct {
	name    string
	*report         // nil where there is none that counts
	prompts *report // nil where they are not known
	err     error   // of the report
	runs    bool    // it holds its lock, on this machine
	ended   bool    // what is there is its last word
	past    bool    // neither lock nor report are there any more
}

func (e entry) started() time.Time {
	if e.report == nil {
		return time.Time{}
	}
	return e.Started
}

// scan reads the reports of all processes except those that are in the totals, in the order in which
// models get their places: that of the starts of processes.
func (p *place) scan(t *totals) ([]entry, error) {
	names, err := p.list()
	if err != nil {
		return nil, err
	}
	entries := make([]entry, 0, len(names))
	for _, name := range names {
		e := entry{name: name}
		if p.examine(&e); slices.Contains(t.Folded, name) { // somebody was killed before the files were removed
			e = entry{name: name, ended: true, past: e.past}
		}
		entries = append(entries, e)
	}
	slices.SortStableFunc(entries, func(x, y entry) int { return x.started().Compare(y.started()) })
	return entries, nil
}

// examine reads a report, after it has looked at the lock: behind the lock of a process that has ended is
// its last report. Where no lock tells, because it was removed or does not reach the machine of the
// process, the age does.
func (p *place) examine(e *entry) {
	held, lockErr := vfs.Held(p.path(e.name + ownEnd))
	unknown, noLock := lockErr != nil, errors.Is(lockErr, fs.ErrNotExist)
	r, err := p.readReport(e.name + numbersEnd)
	switch e.ended = !held; {
	case errors.Is(err, fs.ErrNotExist): // it has not counted, or the report is removed already
		e.past, e.ended = noLock, !held && (noLock || !unknown)
		return
	case err == nil:
		e.report, e.runs = r, held && isHere(r.Process.Boot)
		unknown = unknown || !held && !p.reaches(r.Process.Boot)
	case errors.Is(err, errContent):
		e.err = err
	default: // it may be read later, or by another version
		e.ended = false
		return
	}
	if unknown {
		info, err := p.fs.Lstat(p.path(e.name + numbersEnd))
		e.ended = err == nil && p.now().Sub(info.ModTime()) > orphanAge
	}
}

var thisBoot = sync.OnceValues(proc.Boot)

// isHere reports whether a process of some boot of a machine runs here, as far as known.
func isHere(boot string) bool {
	own, err := thisBoot()
	return err != nil || boot == "" || own == boot
}

// reaches reports whether the locks of a process of some boot of a machine reach here.
func (p *place) reaches(boot string) bool {
	if isHere(boot) {
		return true
	}
	locking, err := p.fs.Locking(p.dir)
	return err == nil && locking.Reach != vfs.ReachHost
}
