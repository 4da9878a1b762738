package collect

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"slices"

	"github.com/kvtier/kvtier/diskstore/vfs"
)

const (
	// pastMax bounds the processes that have ended and whose prompts are kept.
	pastMax = 32
	// foldedMax bounds the names of processes that are in the totals and whose files are gone.
	foldedMax = 128
)

// folder adds the files of processes that have ended to the totals.
type folder struct {
	*place
	log  *slog.Logger
	name func(weights string) string // of a model; nil for a process that does not collect
}

// fold adds the processes that have ended to the totals, in one step, and removes their files; keep
// leaves their prompts for a collector. When another process does so now, fold leaves it to that one.
func (f folder) fold(keep bool) error {
	lock, err := f.lockFold(foldPatience)
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
	entries, err := f.scan(t)
	if err != nil {
		return err
	}
	changed := t.fold(entries)
	if f.noteNames(t) || changed || fresh {
		data, err := encode(t)
		if err == nil {
			err = f.replace(fileName, data)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", f.path(fileName), err)
		}
	}
	for _, e := range entries {
		if e.ended && !(keep && e.past) {
			if err := f.drop(e, keep); err != nil {
				return err
			}
		}
	}
	if !keep {
		return nil
	}
	return f.dropOldPrompts(entries)
}

// load reads the totals. A file that cannot be used is set aside, for a person to look at.
func (f folder) load() (t *totals, fresh bool, err error) {
	t, data, err := f.readTotals()
	if errors.Is(err, errContent) || errors.Is(err, vfs.ErrNotRegular) {
		log := f.log
		log.Warn("kv tier: totals of reports begin anew, the former file is set aside", "path", f.path(asideName), "error", err)
		if err = f.remove(asideName); err == nil {
			err = f.fs.Rename(f.path(fileName), f.path(asideName))
		}
		if err != nil {
			return nil, false, fmt.Errorf("set %s aside: %w", f.path(fileName), err)
		}
		t, data, err = f.readTotals()
	}
	return t, data == nil, err
}

// noteNames takes the names of models from the collector, and reports whether one is new.
func (f folder) noteNames(t *totals) (changed bool) {
	if f.name == nil {
		return false
	}
	names := make(map[string]string)
	for _, m := range t.Models {
		if name := f.name(m.Model.Weights); name != "" && isShown(name) {
			names[m.Model.Weights] = name
		}
	}
	changed = !maps.Equal(names, t.Names)
	t.Names = names
	return changed
}

// drop removes the files of a process that has ended, under its lock: nobody else writes them. The lock
// goes last: who holds it keeps others from the rest.
func (f folder) drop(e entry, keep bool) error {
	lock, err := f.fs.LockThere(f.path(e.name + ownEnd))
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist):
		lock = io.NopCloser(nil)
	case errors.Is(err, vfs.ErrLocked): // it runs
		return nil
	default:
		return err
	}
	err = nil
	for _, end := range []string{numbersEnd, numbersEnd + tmpEnd, wordsEnd + tmpEnd, wordsEnd} {
		if !(keep && end == wordsEnd) {
			err = errors.Join(err, f.remove(e.name+end))
		}
	}
	lock.Close() // some systems remove no open file
	if err == nil {
		err = f.remove(e.name + ownEnd)
	}
	if err == nil && e.err != nil {
		log := f.log
		log.Warn("kv tier: a report cannot be used", "path", f.path(e.name+numbersEnd), "error", e.err)
	}
	return err
}

// dropOldPrompts removes prompts of processes that ended long ago.
func (f folder) dropOldPrompts(entries []entry) error {
	var past []fs.FileInfo
	for _, e := range entries {
		if info, err := f.fs.Lstat(f.path(e.name + wordsEnd)); e.past && err == nil {
			past = append(past, info)
		}
	}
	slices.SortFunc(past, func(x, y fs.FileInfo) int { return y.ModTime().Compare(x.ModTime()) })
	for _, info := range past[min(len(past), pastMax):] {
		if err := f.remove(info.Name()); err != nil {
			return err
		}
	}
	return nil
}
