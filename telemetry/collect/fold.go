package collect

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/kvtier/kvtier/diskstore/vfs"
)

const (
	// pastMax bounds the processes that have ended and whose prompts are kept.
	pastMax = 32
	// foldedMax bounds the names of processes that are in the totals and whose files are gone: a reader may
	// have read their reports before.
	foldedMax = processesMax
)

// fold adds the processes that have ended to the totals, in one step, and removes their reports. When
// another process does so now, fold leaves it to that one. A file that cannot be removed keeps no other one.
func (p *place) fold() error {
	lock, err := p.lock(foldName)
	if errors.Is(err, vfs.ErrLocked) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	t, fresh, err := p.loadTotals()
	if err != nil {
		return err
	}
	names, err := p.list()
	if err != nil {
		return err
	}
	entries := p.scan(names[:min(len(names), processesMax)])
	t.leaveOut(entries)
	if changed := t.fold(entries, names); changed || fresh {
		data, failed := encode(t)
		if failed == nil {
			failed = p.replace(totalsName, data)
		}
		if failed != nil {
			err = fmt.Errorf("write %s: %w", p.path(totalsName), failed)
			entries = slices.DeleteFunc(entries, func(e entry) bool { return e.report != nil })
		}
	}
	for _, e := range entries {
		if e.ended && !e.past {
			err = errors.Join(err, p.dropReport(e))
		}
	}
	return errors.Join(err, p.dropOldPrompts(entries))
}

// loadTotals reads the totals. A file that cannot be used is set aside, for a person to look at.
func (p *place) loadTotals() (t *totals, fresh bool, err error) {
	t, fresh, err = p.readTotals()
	if !errors.Is(err, errContent) && !errors.Is(err, vfs.ErrNotRegular) {
		return t, fresh, err
	}
	p.log.Warn("kv tier: totals of reports begin anew, the former file is set aside", "path", p.path(asideName), "error", err)
	if err = p.remove(asideName); err == nil {
		err = p.fs.Rename(p.path(totalsName), p.path(asideName))
	}
	if err != nil {
		return nil, false, fmt.Errorf("set %s aside: %w", p.path(totalsName), err)
	}
	return p.readTotals()
}

// dropReport removes the files of a process that has ended, except its prompts, under its lock: nobody
// else writes them. The lock goes last: who holds it keeps others from the rest.
func (p *place) dropReport(e entry) error {
	lock, err := p.fs.LockThere(p.path(e.name + lockEnd))
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist):
		lock = io.NopCloser(nil)
	case errors.Is(err, vfs.ErrLocked): // it runs
		return nil
	default:
		return err
	}
	err = errors.Join(p.remove(e.name+numbersEnd), p.remove(e.name+numbersEnd+tmpEnd), p.remove(e.name+wordsEnd+tmpEnd))
	lock.Close() // some systems remove no open file
	if err == nil {
		err = p.remove(e.name + lockEnd)
	}
	if err == nil && e.err != nil {
		p.log.Warn("kv tier: a report cannot be used", "path", p.path(e.name+numbersEnd), "error", e.err)
	}
	return err
}

func (p *place) dropOldPrompts(entries []entry) error {
	var past []fs.FileInfo
	for _, e := range entries {
		if !e.ended {
			continue
		}
		if info, err := p.fs.Lstat(p.path(e.name + wordsEnd)); err == nil {
			past = append(past, info)
		}
	}
	slices.SortFunc(past, func(x, y fs.FileInfo) int { return y.ModTime().Compare(x.ModTime()) })
	var err error
	for _, info := range past[min(len(past), pastMax):] {
		err = errors.Join(err, p.remove(info.Name()))
	}
	return err
}
