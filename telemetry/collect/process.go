package collect

import (
	"errors"
	"io/fs"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/proc"
)

const (
	// processesMax bounds the processes that are read: each that starts adds those that have ended.
	processesMax = 1024
	// orphanAge is the age at which a file counts as that of a process that has ended, where no lock
	// tells. A process that runs writes its file more often.
	orphanAge = 24 * time.Hour
)

// fileOf matches a file of a process, and has its name without the end.
var fileOf = regexp.MustCompile(`^(p-[A-Z2-7]{26})\.(?:json|words|lock|json\.tmp|words\.tmp)$`)

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

func (p *place) list() ([]string, error) {
	entries, err := p.fs.ReadDir(p.dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if m := fileOf.FindStringSubmatch(e.Name()); m != nil {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// scan reads the reports of processes, in the order in which models get their places: that of the
// starts of processes. Readers read the totals afterwards: see [totals.leaveOut].
func (p *place) scan(names []string) []entry {
	entries := make([]entry, 0, len(names))
	for _, name := range names {
		entries = append(entries, p.examine(name))
	}
	slices.SortStableFunc(entries, func(x, y entry) int { return x.started().Compare(y.started()) })
	return entries
}

// examine reads a report, after it has looked at the lock: behind the lock of a process that has ended is
// its last report. Where the lock was removed, or may not reach the machine of the process, the age tells.
func (p *place) examine(name string) entry {
	e := entry{name: name}
	held, lockErr := vfs.Held(p.path(name + lockEnd))
	told := lockErr == nil // the lock tells whether it runs
	r, err := p.readReport(name + numbersEnd)
	switch {
	case errors.Is(err, fs.ErrNotExist): // it has not counted, or the report is removed already
		e.past = errors.Is(lockErr, fs.ErrNotExist)
		e.ended = e.past || told && !held
		return e
	case err == nil:
		here := isHere(r.Process.Boot)
		e.report, e.runs, told = r, held && here, told && here
	case errors.Is(err, errContent):
		e.err = err
	default: // it may be read later, or by another version
		return e
	}
	e.ended = !held && (told || p.isOrphan(name))
	return e
}

// isOrphan reports whether a report has not been replaced for orphanAge.
func (p *place) isOrphan(name string) bool {
	info, err := p.fs.Lstat(p.path(name + numbersEnd))
	return err == nil && time.Since(info.ModTime()) > orphanAge
}

var thisBoot = sync.OnceValues(proc.Boot)

// isHere reports whether a process of some boot of a machine runs here, as far as known.
func isHere(boot string) bool {
	own, err := thisBoot()
	return err != nil || boot == "" || own == boot
}
