package collect

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/proc"
	"github.com/kvtier/kvtier/telemetry"
)

const (
	// orphanAge is the age at which a file counts as that of a process that has ended, where no lock
	// tells. A process that runs writes its file more often.
	orphanAge = 24 * time.Hour
	// pastMax bounds the processes that have ended and whose prompts are kept.
	pastMax = 32
	// locksMax bounds the processes whose locks are held at a time: the next fold adds the others.
	locksMax = 64
	// processesMax bounds the processes that have files: each that starts adds those that have ended.
	processesMax = 1024
	// saidMax bounds the files that are remembered because somebody was told of them.
	saidMax = 256
)

// folder adds the files of processes that have ended to the totals.
type folder struct {
	*place
	log  *slog.Logger
	now  func() time.Time
	name func(weights string) string // of a model; nil for a process that does not collect
	past bool                        // prompts of processes that have ended are kept, for a collector
}

// fold adds the processes that have ended to the totals, in one step, and removes their files. When
// another process does so now, fold leaves it to that one.
func (f folder) fold() error {
	lock, err := f.lock(foldName)
	if errors.Is(err, vfs.ErrLocked) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	t, fresh, err := f.load()
	if err != nil {
		return err
	}
	all, err := list(f.fs, f.dir)
	if err != nil {
		return err
	}
	over := new(endings)
	defer over.release()
	changed := f.gather(t, all, over)
	if f.rename(t) || changed || fresh {
		data, err := encode(t)
		if err == nil {
			err = replace(f.fs, f.path(fileName), data)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", f.path(fileName), err)
		}
	}
	over.release() // some systems remove no open file
	for _, name := range over.names {
		if err := f.removeOf(name, all[name], f.keeps(all[name])); err != nil {
			return err
		}
	}
	return f.forget(all)
}

// load reads the totals. A file that cannot be used is set aside.
func (f folder) load() (t *totals, fresh bool, err error) {
	t, info, err := readTotals(f.fs, f.path(fileName), os.Geteuid(), f.now())
	if errors.Is(err, errContent) || errors.Is(err, vfs.ErrNotRegular) {
		if err := f.setAside(); err != nil {
			return nil, false, fmt.Errorf("set %s aside: %w", f.path(fileName), err)
		}
		log := f.log
		log.Warn("kv tier: totals of reports begin anew, the former file is set aside", "path", f.path(asideName), "error", err)
		t, info, err = readTotals(f.fs, f.path(fileName), os.Geteuid(), f.now())
	}
	return t, info == nil, err
}

// setAside keeps one file for a person to look at.
func (p *place) setAside() error {
	if err := remove(p.fs, p.path(asideName)); err != nil {
		return err
	}
	return p.fs.Rename(p.path(fileName), p.path(asideName))
}

// endings are the processes that have ended. Their locks are held until they are in the totals.
type endings struct {
	names []string
	locks []io.Closer
}

func (e *endings) release() {
	for _, lock := range e.locks {
		lock.Close()
	}
	e.locks = nil
}

// named is a report and the name of its files.
type named struct {
	name    string
	*report      // nil where there is none, or it cannot be used
	ended   bool // it is the last one
}

// inOrder is the order in which models get their places: that of the starts of processes.
func inOrder(x, y named) int {
	if d := x.Started.Compare(y.Started); d != 0 {
		return d
	}
	return strings.Compare(x.name, y.name)
}

// gather adds the reports of processes that have ended, and reports whether the totals have changed.
// A process that runs gets a place for its model, so that it is the same one later.
func (f folder) gather(t *totals, all map[string]files, over *endings) (changed bool) {
	t.Folded = slices.DeleteFunc(t.Folded, func(name string) bool { return !all[name][numbersEnd] })
	var reports []named
	for name, there := range all {
		if slices.Contains(t.Folded, name) { // a process was killed before it removed the files
			over.names = append(over.names, name)
			continue
		}
		if len(over.locks) == locksMax {
			break
		}
		switch r := f.examine(name, there, over); {
		case r.report != nil:
			reports = append(reports, r)
		case r.ended:
			over.names = append(over.names, name)
		}
	}
	models := len(t.Models)
	slices.SortFunc(reports, inOrder)
	for _, r := range reports {
		if !r.ended || len(t.Folded) == foldedMax {
			t.model(r.report)
			continue
		}
		t.add(r.report)
		t.Folded, changed = append(t.Folded, r.name), true
		over.names = append(over.names, r.name)
	}
	return changed || len(t.Models) != models
}

// examine reads a report, after it has tried the lock: behind the lock of a process that has ended is
// its last report. Where no lock tells, because it was removed or does not reach the machine
// of the process, the age does.
func (f folder) examine(name string, there files, over *endings) named {
	lock, err := f.fs.LockThere(f.path(name + ownEnd))
	free := err == nil
	if free {
		over.locks = append(over.locks, lock)
	}
	unknown := errors.Is(err, fs.ErrNotExist)
	r := named{name: name, ended: free}
	if !there[numbersEnd] { // it has not counted, or the report is removed already
		return r
	}
	if r.report, err = readReport(f.fs, f.path(name+numbersEnd), os.Geteuid()); err != nil {
		r.report = nil
		f.complain(name, err)
		if !errors.Is(err, errContent) {
			r.ended = false
			return r
		}
	} else if free && !f.reaches(r.Process.Boot) {
		unknown = true
	}
	if unknown {
		info, err := f.fs.Lstat(f.path(name + numbersEnd))
		r.ended = err == nil && f.now().Sub(info.ModTime()) > orphanAge
	}
	return r
}

// complain tells once that a report cannot be used.
func (f folder) complain(name string, err error) {
	if f.said[name] || errors.Is(err, fs.ErrNotExist) {
		return
	}
	if len(f.said) == saidMax {
		clear(f.said)
	}
	f.said[name] = true
	log := f.log
	log.Warn("kv tier: a report cannot be used", "path", f.path(name+numbersEnd), "error", err)
}

// reaches reports whether the locks of a process that runs since some boot of a machine reach here.
func (f folder) reaches(boot string) bool {
	if own, err := proc.Boot(); err != nil || boot == "" || own == boot {
		return true
	}
	locking, err := f.fs.Locking(f.dir)
	return err == nil && locking.Reach != vfs.ReachHost
}

// rename takes the names of models from the collector, and reports whether one is new.
func (f folder) rename(t *totals) (changed bool) {
	if f.name == nil {
		return false
	}
	names := make(map[string]string)
	for _, m := range t.Models {
		name := f.name(m.Model.Weights)
		if name != "" && checkText(name, telemetry.NameBytesMax) == nil && checkText(m.Model.Weights, seriesBytesMax) == nil {
			names[m.Model.Weights] = name
		}
	}
	if maps.Equal(names, t.Names) {
		return false
	}
	t.Names = names
	return true
}

// keeps is the end of the file that stays of a process that has ended.
func (f folder) keeps(there files) string {
	if f.past && there[wordsEnd] {
		return wordsEnd
	}
	return ""
}

// forget removes prompts of processes whose other files are gone: all, or for a collector those of
// long ago.
func (f folder) forget(all map[string]files) error {
	var past []fs.FileInfo
	for name, there := range all {
		if !there[wordsEnd] || there[numbersEnd] || there[ownEnd] {
			continue
		}
		if info, err := f.fs.Lstat(f.path(name + wordsEnd)); err == nil {
			past = append(past, info)
		}
	}
	keep := 0
	if f.past {
		keep = min(len(past), pastMax)
		slices.SortFunc(past, func(x, y fs.FileInfo) int { return y.ModTime().Compare(x.ModTime()) })
	}
	for _, info := range past[keep:] {
		if err := remove(f.fs, f.path(info.Name())); err != nil {
			return err
		}
	}
	return nil
}
