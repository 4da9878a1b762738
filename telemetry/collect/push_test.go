package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/telemetry"
)

// Reports reach readers, who make nothing by looking; the files are private, and their sums outlive them.
func TestReportsReachReaders(t *testing.T) {
	s := newSite(t)
	_, err := Read(t.Context(), s.root)
	require.ErrorIs(t, err, ErrNothing)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, s.root)
	require.NoDirExists(t, s.dir)

	p := s.process(1)
	p.prompt(0)
	p.source.Meter.Add(promptsTotal, 2)
	stop := p.push()
	s.awaitTotal(3)
	state := s.read()
	require.True(t, state.Live)
	require.Equal(t, s.root, state.Root)
	require.Equal(t, telemetry.Version, state.Version)
	require.Len(t, state.Processes, 1)
	require.Len(t, state.Prompts, 1)
	p.source.Meter.Add(promptsTotal, 1)
	s.awaitTotal(4)
	stop()
	for path, want := range map[string]fs.FileMode{"": fs.ModeDir | 0o700, foldName: 0o600, totalsName: 0o600, p.name + numbersEnd: 0o600, p.name + wordsEnd: 0o600, p.name + lockEnd: 0o600} {
		info, err := os.Lstat(s.path(path))
		require.NoError(t, err)
		require.Equal(t, want, info.Mode(), path)
	}
	for range 2 {
		again := s.read()
		require.True(t, state.Since.Equal(again.Since))
		require.Equal(t, 4.0, total(again, promptsTotal))
		require.Empty(t, again.Processes)
		require.Equal(t, []string{foldName, p.name + wordsEnd, totalsName}, s.names())
	}
}

// A root that is made later is waited for; nobody but the page store makes it.
func TestRootThatIsMadeLater(t *testing.T) {
	s := siteAt(t, filepath.Join(t.TempDir(), "local"))
	p := s.process(1)
	require.ErrorIs(t, p.try(true), fs.ErrNotExist)
	p.push()
	require.NoDirExists(t, s.root)
	require.NoError(t, os.Mkdir(s.root, 0o700))
	await(t, "a report", func() bool {
		state, err := Read(t.Context(), s.root)
		return err == nil && len(state.Processes) == 1
	})
	require.Empty(t, s.warns.String())
}

// A directory that others may change is refused by all.
func TestUnsafeDirectory(t *testing.T) {
	for name, prepare := range map[string]func(root, dir string) error{
		"link": func(root, dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(root, "other"), 0o700), os.Symlink(filepath.Join(root, "other"), dir))
		},
		"writable by others": func(_, dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)) },
		"file":               func(_, dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"root":               func(root, dir string) error { return os.Chmod(root, 0o770) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			require.NoError(t, prepare(s.root, s.dir))
			_, err := Read(t.Context(), s.root)
			require.Error(t, err)
			err = s.process(1).try(true)
			require.True(t, tier.UnsafeRoot(err), "%v", err)
			require.ErrorContains(t, err, s.root)
			require.Error(t, s.fold())
		})
	}
}

// A person removes the directory: the process goes on, and the totals begin anew.
func TestDirectoryThatIsRemoved(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.source.Meter.Add(promptsTotal, 3)
	p.push()
	s.awaitTotal(3)
	await(t, "a moment in which nobody makes a file", func() bool { return os.RemoveAll(s.dir) == nil })
	p.source.Meter.Add(promptsTotal, 1)
	s.awaitTotal(1)
	require.Len(t, s.read().Processes, 1)
}

// Without a change nothing is written, except seldom, to tell that the process does not hang. Prompts
// are written when there are new ones alone.
func TestOnlyChangesAreWritten(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.every.heartbeat = time.Hour
	p.prompt(0)
	for range 10 {
		require.NoError(t, p.try(false))
	}
	s.fault.Reset()
	require.NoError(t, p.try(false))
	require.Zero(t, s.fault.Count())
	p.source.Meter.Add(promptsTotal, 1)
	require.NoError(t, p.try(false))
	require.Equal(t, 1, s.fault.Count(vfs.OpWrite))
	p.written = p.written.Add(-time.Hour) // the heartbeat
	require.NoError(t, p.try(false))
	require.Equal(t, 2, s.fault.Count(vfs.OpWrite))
	require.NoError(t, p.try(true))
	require.Equal(t, 3, s.fault.Count(vfs.OpWrite), "the last one is written without a change")
	p.prompt(0)
	require.NoError(t, p.try(false))
	require.Equal(t, 5, s.fault.Count(vfs.OpWrite))
	require.Less(t, defaultIntervals.heartbeat+defaultIntervals.report+defaultIntervals.backoff, telemetry.SilentAfter, "it is not called silent")
}

// TestPromptsThatWait for a lock keep no count: what was added to the totals is known.
func TestPromptsThatWait(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.prompt(0)
	busy, err := s.lock(foldName)
	require.NoError(t, err)
	require.ErrorIs(t, p.try(false), vfs.ErrLocked)
	require.NoError(t, s.fold(), "it is left to the other one")
	require.NoError(t, busy.Close())
	require.NoError(t, os.Remove(s.path(p.name+lockEnd)))
	s.makeOld(p.name)
	require.NoError(t, s.fold())
	p.report()
	require.Equal(t, 1.0, total(s.look(), promptsTotal))
	require.Len(t, s.look().Prompts, 1)
}

// TestAReaderAtTheFirstReport: who asks whether the process runs, when it takes its lock, costs no prompt.
func TestAReaderAtTheFirstReport(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.prompt(0)
	s.fault.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpLock}, Path: regexp.MustCompile(lockEnd + "$"), Nth: 1, Err: vfs.ErrLocked})
	p.step()
	p.report()
	require.Len(t, s.look().Prompts, 1)
}

// A nudge causes a report before its time, and who asks for one waits for it.
func TestNudge(t *testing.T) {
	s := newSite(t)
	nudge := make(chan chan<- struct{}, 1)
	p := s.process(1)
	p.opt.Nudge, p.every.heartbeat, p.every.report = nudge, time.Hour, time.Hour
	p.push()
	s.awaitTotal(0)
	p.source.Meter.Add(promptsTotal, 1)
	for range 1000 {
		select {
		case nudge <- make(chan struct{}):
		default:
		}
	}
	s.awaitTotal(1)
	p.source.Meter.Add(promptsTotal, 6)
	told := make(chan struct{})
	nudge <- told
	<-told
	require.Equal(t, 7.0, total(s.read(), promptsTotal))
}

// A disk that is full: the files keep their content, the process goes on, says so once, and all is written
// when there is room. Nothing is lost where the totals cannot be written.
func TestFullDisk(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpCreate, vfs.OpWrite, vfs.OpClose, vfs.OpRename} {
		s := newSite(t)
		p, ended := s.process(1), s.process(2)
		p.count(1)
		ended.count(10)
		ended.end()
		s.fault.Add(vfs.Rule{Ops: []vfs.Op{op}, Err: syscall.ENOSPC, Short: 7})
		p.source.Meter.Add(promptsTotal, 1)
		for range 3 {
			require.LessOrEqual(t, p.step(), quick.backoff)
			require.Error(t, s.fold())
			require.Equal(t, 11.0, total(s.look(), promptsTotal), op)
		}
		require.Equal(t, 1, strings.Count(s.warns.String(), "cannot write reports"), op)
		started := s.process(3) // and takes its lock alone
		require.Error(t, started.try(true))
		started.end()
		require.Error(t, s.fold())
		require.NoFileExists(t, s.path(started.name+lockEnd), op)
		s.fault.Reset()
		p.step()
		require.NoError(t, s.fold())
		require.Equal(t, 12.0, total(s.look(), promptsTotal), op)
		p.end()
		require.NoError(t, s.fold())
		require.Equal(t, settled, s.names(), op)
	}
}

// A disk that hangs: a process ends in time, and its file is not added to the totals until the write is
// over, which would put it there once more.
func TestDiskThatHangs(t *testing.T) {
	s := newSite(t)
	gate := vfs.NewGate()
	p := s.process(1)
	p.every.last, p.patience = time.Millisecond, time.Millisecond
	stop := p.push()
	p.source.Meter.Add(promptsTotal, 1)
	s.awaitTotal(1)
	s.fault.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRename}, Gate: gate})
	p.source.Meter.Add(promptsTotal, 1)
	<-gate.Entered()
	stop() // in time
	require.Len(t, s.read().Processes, 1)
	require.Equal(t, 1.0, total(s.read(), promptsTotal))
	gate.Open()
	await(t, "the end of the write", func() bool { s.read(); return len(s.names()) == len(settled) })
	require.Equal(t, 2.0, total(s.look(), promptsTotal))
}

// A source that hangs does not hold up the end.
func TestHangingAtTheEnd(t *testing.T) {
	release, asked := make(chan struct{}), make(chan struct{}, 8)
	p := newSite(t).process(1)
	p.source.Fill = func(*telemetry.Report) { asked <- struct{}{}; <-release }
	p.every.last, p.patience = time.Millisecond, time.Millisecond
	stop := p.push()
	<-asked
	stop()
	require.True(t, p.runs.Hangs())
	close(release)
	await(t, "the end of the run", func() bool { return !p.runs.Hangs() })
}

// TestAReaderWhoseDiskHangs in a write gets the state, and adds nothing. One whose root hangs fails in
// time, and keeps nobody from reading another root.
func TestAReaderWhoseDiskHangs(t *testing.T) {
	s, other := newSite(t), newSite(t)
	p := s.process(1)
	p.count(3)
	p.end()
	gate := vfs.NewGate()
	s.fault.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRename}, Gate: gate})
	s.patience = time.Millisecond
	for range 2 {
		state, err := s.state(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3.0, total(state, promptsTotal))
	}
	end := make(chan struct{})
	hangs := func() (any, error) { <-end; return nil, nil }
	_, err := steady.Do(t.Context(), reads.of(other.root), steady.Wait{Most: time.Millisecond}, hangs, nil)
	require.ErrorIs(t, err, steady.ErrHung)
	_, err = Read(t.Context(), other.root)
	require.ErrorIs(t, err, steady.ErrHung)
	_, err = steady.Do(t.Context(), forgets.of(other.root), steady.Wait{Most: time.Millisecond}, hangs, nil)
	require.ErrorIs(t, err, steady.ErrHung)
	for range 2 { // at once, and leaves nothing behind
		require.ErrorIs(t, Forget(t.Context(), other.root, everyModel), steady.ErrHung)
	}
	require.Equal(t, 3.0, total(s.read(), promptsTotal))
	gate.Open()
	close(end)
	await(t, "the end of both", func() bool {
		return !folds.of(s.root).Hangs() && !reads.of(other.root).Hangs() && !forgets.of(other.root).Hangs()
	})

	ended, giveUp := context.WithCancel(t.Context())
	giveUp()
	_, err = Read(ended, s.root)
	require.ErrorIs(t, err, context.Canceled)
}

// TestTextsThatReadersRefuse: that nobody sees the process is said, once.
func TestTextsThatReadersRefuse(t *testing.T) {
	for _, namespace := range []string{"a\tb", strings.Repeat("x", telemetry.NameBytesMax+1)} {
		s := newSite(t)
		p := s.process(1)
		p.source.Model.Namespace = namespace
		p.step()
		p.step()
		require.Equal(t, 1, strings.Count(s.warns.String(), "readers would pass the report over"), s.warns)
	}
}

// Too large a report loses its parts, and is read.
func TestLargeReportsAreCut(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.source.Fill = func(r *telemetry.Report) {
		for i := range 4 * telemetry.SlotsMax {
			r.Slots = append(r.Slots, telemetry.Slot{ID: i})
			r.Prompts = append(r.Prompts, telemetry.Prompt{Seq: uint64(1000 + i)})
			r.Tiers = append(r.Tiers, telemetry.Tier{Name: telemetry.PlaceLocal, Root: fmt.Sprint(i)})
			r.Memory = append(r.Memory, telemetry.Memory{})
			r.Busters = append(r.Busters, telemetry.Buster{})
		}
	}
	p.count(1)
	state := s.look()
	require.Len(t, state.Processes[0].Slots, telemetry.SlotsMax)
	require.Len(t, state.Processes[0].Busters, telemetry.BustersMax)
	require.Len(t, state.Prompts, telemetry.PromptsMax)
	p.source.Fill = func(r *telemetry.Report) {
		for i := range 20_000 {
			r.Gauges[fmt.Sprint(i)+strings.Repeat("x", 100)] = 1
		}
	}
	p.count(1)
	state = s.look()
	require.Empty(t, state.Processes[0].Gauges)
	require.Equal(t, 2.0, total(state, promptsTotal))
}
