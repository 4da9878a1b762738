package collect

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/telemetry"
)

func requireMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, want, info.Mode())
}

func TestReportsReachReaders(t *testing.T) {
	root := newRoot(t)
	collector(t, root)
	source := testSource(1)
	source.Meter.Prompt(telemetry.Prompt{At: testStart, Tokens: 1, Computed: 1})
	source.Meter.Add(promptsTotal, 2)
	startPush(t, root, source)
	awaitTotal(t, root, promptsTotal, 3)
	s := readState(t, root)
	require.True(t, s.Live)
	require.Equal(t, root, s.Root)
	require.Equal(t, telemetry.Version, s.Version)
	require.Len(t, s.Processes, 1)
	require.Len(t, s.Prompts, 1)
	source.Meter.Add(promptsTotal, 1)
	awaitTotal(t, root, promptsTotal, 4)

	dir := filepath.Join(root, directoryName)
	requireMode(t, dir, fs.ModeDir|0o700)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), tmpEnd) {
			requireMode(t, filepath.Join(dir, e.Name()), 0o600)
		}
	}
}

// The totals outlive the collector and the processes.
func TestStateWithoutACollector(t *testing.T) {
	root := newRoot(t)
	_, err := Read(t.Context(), root)
	require.ErrorIs(t, err, ErrNothing)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, root)
	require.NoDirExists(t, filepath.Join(root, directoryName), "nothing is made by looking")
	_, err = ReadWords(t.Context(), root, "")
	require.ErrorIs(t, err, ErrNoCollector)

	c := collector(t, root)
	source := testSource(1)
	source.Meter.Add(promptsTotal, 3)
	startPush(t, root, source).stop()
	require.Equal(t, 3.0, total(readState(t, root), promptsTotal), "the last report is there")
	require.NoError(t, c.stop())
	s := readState(t, root)
	require.False(t, s.Live)
	require.Equal(t, root, s.Root)
	require.Equal(t, 3.0, total(s, promptsTotal))
	require.Empty(t, s.Processes)
	_, err = ReadWords(t.Context(), root, "")
	require.ErrorIs(t, err, ErrNoCollector)

	collector(t, root)
	again := readState(t, root)
	require.True(t, again.Live)
	require.True(t, s.Since.Equal(again.Since))
	require.Equal(t, 3.0, total(again, promptsTotal))
}

// Of many processes one collects, and each of the others takes over when its turn comes.
func TestOneCollectsAtATime(t *testing.T) {
	root := newRoot(t)
	var collecting atomic.Int32
	serves := make(chan int, 8)
	var all []*serving
	for i := range 5 {
		all = append(all, startServe(t, root, func(o *Options) {
			o.OnServe = func() { collecting.Add(1); serves <- i }
		}))
	}
	source := testSource(1)
	startPush(t, root, source)
	for n := range len(all) {
		i := <-serves
		require.Equal(t, int32(n+1), collecting.Load(), "no second one")
		source.Meter.Add(promptsTotal, 1)
		await(t, "a report", func() bool {
			s := readState(t, root)
			return s.Live && len(s.Processes) == 1 && total(s, promptsTotal) == float64(n+1)
		})
		require.NoError(t, all[i].stop())
	}
}

// A root that is made later is waited for; nobody but the page store makes it.
func TestRootThatIsMadeLater(t *testing.T) {
	root := filepath.Join(t.TempDir(), "local")
	serves := make(chan struct{}, 1)
	startServe(t, root, func(o *Options) { o.OnServe = func() { serves <- struct{}{} } })
	startPush(t, root, testSource(1))
	_, err := os.Lstat(root)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.Mkdir(root, 0o700))
	<-serves
	await(t, "a report", func() bool { return len(readState(t, root).Processes) == 1 })
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
			root := newRoot(t)
			require.NoError(t, prepare(root, filepath.Join(root, directoryName)))
			err := Serve(t.Context(), root, Options{Intervals: quick})
			require.True(t, tier.UnsafeRoot(err), "%v", err)
			require.ErrorContains(t, err, root)
			_, err = Read(t.Context(), root)
			require.Error(t, err)
			place, err := newPlace(root, Options{}.withDefaults())
			require.NoError(t, err)
			p := newPusher(place, testSource(1), Options{Intervals: quick}.withDefaults())
			defer p.end()
			require.Error(t, p.try(true))
		})
	}
}

// A person removes the collector's lock or the directory: the collector and the process go on, and the
// totals begin anew with the directory.
func TestDirectoryThatIsRemoved(t *testing.T) {
	for name, want := range map[string]float64{lockName: 4, "": 1} {
		root := newRoot(t)
		serves := make(chan struct{}, 16)
		startServe(t, root, func(o *Options) { o.OnServe = func() { serves <- struct{}{} } })
		<-serves
		source := testSource(1)
		source.Meter.Add(promptsTotal, 3)
		startPush(t, root, source)
		awaitTotal(t, root, promptsTotal, 3)
		await(t, "a moment in which nobody makes a file", func() bool { return os.RemoveAll(filepath.Join(root, directoryName, name)) == nil })
		<-serves
		source.Meter.Add(promptsTotal, 1)
		awaitTotal(t, root, promptsTotal, want)
		await(t, "a process that runs", func() bool {
			s := readState(t, root)
			return s.Live && len(s.Processes) == 1
		})
	}
}

// Totals that cannot be used are set aside, and begin anew.
func TestTotalsThatCannotBeUsed(t *testing.T) {
	hole := func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) }
	text := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
	}
	for name, make := range map[string]func(path string) error{
		"empty": text(""), "cut off": text(`{"version":2,`), "zeros": text(string(make([]byte, 4096))), "future": text(`{"version":3}`),
		"a hole": hole, "a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a link":           func(path string) error { return os.Symlink("/etc/passwd", path) },
		"a negative total": text(`{"version":2,"models":[{"totals":{"x":-1}}]}`),
		"twice":            text(`{"version":2,"models":[{},{}]}`),
		"too many models":  text(`{"version":2,"models":[` + strings.Repeat("{},", telemetry.ModelsMax) + `{}]}`),
		"many objects":     text(`{"version":2,"models":[` + strings.Repeat("{},", 1<<20) + `{}]}`),
	} {
		t.Run(name, func(t *testing.T) {
			root := newRoot(t)
			require.NoError(t, os.Mkdir(filepath.Join(root, directoryName), 0o700))
			for range 2 { // also where there is a file that was set aside
				require.NoError(t, make(newPath(root, fileName)))
				_, err := Read(t.Context(), root)
				require.Error(t, err)
				c := collector(t, root)
				s := readState(t, root)
				require.True(t, s.Live)
				require.Empty(t, s.Models)
				require.NoError(t, c.stop())
				_, err = os.Lstat(newPath(root, asideName))
				require.NoError(t, err)
				require.True(t, s.Since.Equal(readState(t, root).Since))
				require.NoError(t, os.Remove(newPath(root, fileName)))
			}
		})
	}
}

// TestACollectorEndsWhileOthersAdd: the next reader adds what the collector could not, and removes the
// prompts.
func TestACollectorEndsWhileOthersAdd(t *testing.T) {
	s := newSite(t)
	c := collector(t, s.root, func(o *Options) { o.Intervals.Disk = time.Second })
	p := s.process(1)
	p.source = wordsSource(1, "", 7)
	p.count(3)
	var busy io.Closer
	await(t, "the collector to leave the lock", func() bool {
		var err error
		busy, err = s.lock(foldName)
		return err == nil
	})
	p.end()
	require.NoError(t, c.stop())
	require.FileExists(t, s.path(p.name+wordsEnd))
	require.NoError(t, busy.Close())
	require.Equal(t, 5.0, total(readState(t, s.root), promptsTotal))
	require.Equal(t, []string{foldName, lockName, fileName}, s.names())
}

// TestAReaderWhoseDiskTakesNoFiles hangs: the reader gets the state, and adds nothing.
func TestAReaderWhoseDiskTakesNoFiles(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.count(3)
	p.end()
	gate := vfs.NewGate()
	s.fault.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRename}, Gate: gate})
	for range 2 {
		state, err := read(t.Context(), s.root, nil, Options{Intervals: Intervals{Disk: time.Millisecond}, fs: s.faulty()})
		require.NoError(t, err)
		require.Equal(t, 3.0, total(state, promptsTotal))
	}
	gate.Open()
	await(t, "the end of the write", func() bool { return !folds.of(s.root).Hangs() })
}

// TestAnotherRootsDiskThatHangs keeps nobody from reading this root.
func TestAnotherRootsDiskThatHangs(t *testing.T) {
	s, other := newSite(t), newSite(t)
	s.process(1).count(3)
	end := make(chan struct{})
	hangs := func() (any, error) { <-end; return nil, nil }
	_, err := steady.Do(t.Context(), reads.of(other.root), steady.Wait{Most: time.Millisecond}, hangs, func(any, error) {})
	require.ErrorIs(t, err, steady.ErrHung)
	_, err = Read(t.Context(), other.root)
	require.ErrorIs(t, err, steady.ErrHung)
	require.Equal(t, 3.0, total(readState(t, s.root), promptsTotal))
	close(end)
	await(t, "the end of the read", func() bool { return !reads.of(other.root).Hangs() })
}

// A reader that gives up gets no state.
func TestReaderThatGivesUp(t *testing.T) {
	root := newRoot(t)
	collector(t, root)
	ended, end := context.WithCancel(t.Context())
	end()
	_, err := Read(ended, root)
	require.ErrorIs(t, err, context.Canceled)
}

// wordsSource is a source with two prompts, a private one and another, and a place that changes.
func wordsSource(pid int, namespace string, token int32) *telemetry.Source {
	source := testSource(pid)
	source.Model.Namespace = namespace
	words := &telemetry.Words{Was: []int32{token}, Is: []int32{token}}
	for _, private := range []bool{true, false} {
		source.Meter.Prompt(telemetry.Prompt{At: testStart, Private: private, Tokens: 9, Computed: 9, Miss: &telemetry.Miss{Cause: telemetry.CauseDiffers, Words: words}})
	}
	source.Fill = func(r *telemetry.Report) { r.Busters = []telemetry.Buster{{Begin: 1, End: 2, Words: words}} }
	return source
}

// Words are shown for the namespace that is asked for, never in the state, and never those of
// private prompts, which are in no file.
func TestWordsAreShownToTheirNamespace(t *testing.T) {
	s := newSite(t)
	held, err := s.lock(lockName)
	require.NoError(t, err)
	defer held.Close()
	tokens := map[string]int32{"": 111111, "team": 222222, "team ": 333333, "\xff": 444444}
	pid := 0
	for namespace, token := range tokens {
		pid++
		p := s.process(pid)
		p.source = wordsSource(pid, namespace, token)
		p.report()
		if namespace == "\xff" { // JSON could give its words to another one
			require.NoFileExists(t, s.path(p.name+wordsEnd))
			continue
		}
		text := unzipped(t, s.path(p.name+wordsEnd))
		require.Equal(t, 2, strings.Count(text, `"words"`), "of the prompt that is not private, and of the place")
		requireMode(t, s.path(p.name+wordsEnd), 0o600)
	}
	for _, asked := range []string{"", "team", "team ", "other"} {
		state, err := ReadWords(t.Context(), s.root, asked)
		require.NoError(t, err)
		require.Len(t, state.Prompts, 6)
		require.Len(t, state.Processes, 4)
		for _, p := range state.Prompts {
			want := p.Namespace == asked && !p.Private
			require.Equal(t, want, p.Miss.Words != nil)
			if want {
				require.Equal(t, tokens[asked], p.Miss.Words.Is[0])
			}
		}
		for _, p := range state.Processes {
			for _, b := range p.Busters {
				require.Equal(t, p.Model.Namespace == asked, b.Words != nil)
			}
		}
	}
	state := readState(t, s.root)
	for _, p := range state.Prompts {
		require.Nil(t, p.Miss.Words)
	}
}

// TestWordsThatAreRemoved do not come back, of a process that runs or has ended, and others stay.
func TestWordsThatAreRemoved(t *testing.T) {
	s := newSite(t)
	held, err := s.lock(lockName)
	require.NoError(t, err)
	defer held.Close()
	s.past = true
	var all []*process
	for pid := 1; pid <= 3; pid++ {
		p := s.process(pid)
		p.source = wordsSource(pid, "", int32(1000000+pid))
		p.source.Model.Weights = map[int]string{1: "gone", 2: "gone", 3: "stays"}[pid]
		p.report()
		all = append(all, p)
	}
	all[0].end()
	require.NoError(t, s.fold())
	with := func() (words int) {
		state, err := ReadWords(t.Context(), s.root, "")
		require.NoError(t, err)
		for _, p := range state.Prompts {
			if p.Miss != nil && p.Miss.Words != nil {
				words++
			}
		}
		for _, p := range state.Processes {
			for _, b := range p.Busters {
				if b.Words != nil {
					words++
				}
			}
		}
		return words
	}
	require.Equal(t, 1+2+2, with(), "the place that changes is told of those that run")
	require.NoError(t, Forget(t.Context(), s.root, func(m telemetry.Model) bool { return m.Weights == "gone" }))
	require.Equal(t, 2, with())
	all[1].report()
	require.Equal(t, 2, with(), "nothing has changed")
	for range 2 {
		all[1].source.Meter.Prompt(telemetry.Prompt{At: testStart, Tokens: 9, Computed: 9})
		all[1].report()
		require.Equal(t, 2, with())
		require.NotContains(t, unzipped(t, s.path(all[1].name+wordsEnd)), "1000002")
	}
	all[1].source.Meter.Prompt(telemetry.Prompt{At: testStart, Tokens: 9, Computed: 9, Miss: &telemetry.Miss{Cause: telemetry.CauseDiffers, Words: &telemetry.Words{Is: []int32{5}}}})
	all[1].report()
	require.Equal(t, 3, with())
	require.Equal(t, 9.0, total(readState(t, s.root), promptsTotal), "counts stay")
}

// TestPromptsOfProcessesThatHaveEnded are told while a collector runs, with their words, and go with
// the collector.
func TestPromptsOfProcessesThatHaveEnded(t *testing.T) {
	root := newRoot(t)
	c := collector(t, root)
	startPush(t, root, wordsSource(1, "", 7)).stop()
	words := func() (n int) {
		s, err := ReadWords(t.Context(), root, "")
		require.NoError(t, err)
		for _, p := range s.Prompts {
			if p.Miss.Words != nil {
				n++
			}
		}
		return n
	}
	for range 2 {
		require.Equal(t, 1, words())
		await(t, "the totals", func() bool {
			entries, err := os.ReadDir(filepath.Join(root, directoryName))
			return err == nil && len(entries) == len(settled)+2
		})
	}
	require.NoError(t, c.stop())
	entries, err := os.ReadDir(filepath.Join(root, directoryName))
	require.NoError(t, err)
	require.Len(t, entries, len(settled)+1)
	collector(t, root)
	require.Zero(t, words())
}
