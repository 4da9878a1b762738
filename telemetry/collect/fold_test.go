package collect

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/telemetry"
)

// site is a root whose processes report when a test says so.
type site struct {
	t testing.TB
	*place
	folder folder
	past   bool // prompts of processes that have ended are kept
	fault  *vfs.Injector
	warns  *strings.Builder
}

func newSite(t testing.TB) *site {
	root := newRoot(t)
	s := &site{t: t, fault: vfs.Inject(vfs.Below(filepath.Join(root, directoryName))), warns: new(strings.Builder)}
	opt := Options{Intervals: quick, Logger: lineLogger(s.warns), fs: s.faulty()}.withDefaults()
	var err error
	s.place, err = newPlace(root, opt)
	require.NoError(t, err)
	s.folder = folder{place: s.place, log: opt.Logger}
	return s
}

// faulty has the faults of the site.
func (s *site) faulty() func(string) vfs.FS {
	return func(dir string) vfs.FS {
		if filepath.Base(dir) == directoryName {
			return s.fault
		}
		return vfs.Below(dir)
	}
}

func (s *site) fold() error { return s.folder.fold(s.past) }

// process is a process that reports when a test says so.
type process struct {
	*pusher
	site *site
}

func (s *site) process(pid int) *process {
	source := testSource(pid)
	p := &process{newPusher(s.place, source, Options{Intervals: quick}.withDefaults()), s}
	s.t.Cleanup(p.end)
	return p
}

func (p *process) report() { require.NoError(p.site.t, p.try(true)) }

func (p *process) count(n float64) {
	p.source.Meter.Add(promptsTotal, n)
	p.report()
}

// look reads the files as a reader does, and adds nothing to the totals.
func (s *site) look() telemetry.State {
	s.t.Helper()
	l, err := s.place.look()
	require.NoError(s.t, err)
	return l.state(s.root, time.Now())
}

func (s *site) names() (names []string) {
	entries, err := os.ReadDir(s.dir)
	require.NoError(s.t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// settled are the files of a directory without processes.
var settled = []string{foldName, fileName}

// TestAProcessEndsAtEachStep of adding others: its last report counts.
func TestAProcessEndsAtEachStep(t *testing.T) {
	s := newSite(t)
	want := 0.0
	for step, passed := int32(1), false; !passed; step++ {
		p := s.process(1)
		p.count(1)
		var steps atomic.Int32
		s.fault.Watch(func(vfs.Op, ...string) {
			if steps.Add(1) == step {
				p.count(1)
				p.end()
			}
		})
		require.NoError(t, s.fold())
		passed = steps.Load() < step
		s.fault.Watch(nil)
		if passed {
			p.count(1)
			p.end()
		}
		want += 2
		require.Equal(t, want, total(s.look(), promptsTotal), "step %d", step)
	}
	require.NoError(t, s.fold())
	require.Equal(t, want, total(s.look(), promptsTotal))
	require.Equal(t, settled, s.names())
}

// Models are apart by weights, namespace and engine, the first in the order of their processes.
func TestModelsAreApart(t *testing.T) {
	s := newSite(t)
	for i, edit := range []func(*telemetry.Source){
		func(*telemetry.Source) {}, func(r *telemetry.Source) { r.Model.Weights = "other" },
		func(r *telemetry.Source) { r.Model.Namespace = "n" }, func(r *telemetry.Source) { r.Process.Engine = telemetry.EngineLlama },
	} {
		p := s.process(i + 1)
		edit(p.source)
		p.count(1)
	}
	check := func() {
		state := s.look()
		require.Len(t, state.Models, 4)
		for _, m := range state.Models {
			require.Equal(t, 1.0, m.Totals[promptsTotal])
		}
	}
	check()
	require.NoError(t, s.fold())
	check()
}

// Of more models than there is room for, the first keep their totals, in any order of ends.
func TestFloodOfModels(t *testing.T) {
	s := newSite(t)
	const many = telemetry.ModelsMax + 20
	var all []*process
	for i := range many {
		p := s.process(i + 1)
		p.source.Model.Weights, p.source.Started = fmt.Sprint("w", i), testStart.Add(time.Duration(i)*time.Second)
		p.count(float64(i + 1))
		all = append(all, p)
	}
	want := make(map[string]float64)
	of := func(state telemetry.State) map[string]float64 {
		totals := make(map[string]float64)
		for _, m := range state.Models {
			totals[m.Model.Weights] = m.Totals[promptsTotal]
		}
		return totals
	}
	maps.Copy(want, of(s.look()))
	require.Len(t, want, telemetry.ModelsMax)
	for _, i := range []int{many - 1, 0, 70, 40} {
		all[i].end()
		require.NoError(t, s.fold())
		require.Equal(t, want, of(s.look()))
	}
}

// Each directory is there once, as the latest report has it, also when its process has ended. RAM is
// added up.
func TestTiersAreMerged(t *testing.T) {
	s := newSite(t)
	report := func(pid, pages int, down bool) *process {
		p := s.process(pid)
		p.source.Fill = func(r *telemetry.Report) {
			r.Tiers = []telemetry.Tier{
				{Name: telemetry.PlaceRAM, Pages: pages, Budget: 10}, {Name: telemetry.PlaceLocal, Root: "/a", Pages: pages, Quarantined: 1},
				{Name: telemetry.PlaceRemote, Root: "/b", Pages: pages, Down: down},
			}
		}
		p.report()
		return p
	}
	first, second := report(1, 5, true), report(2, 6, false)
	require.Equal(t, []telemetry.Tier{
		{Name: telemetry.PlaceRAM, Pages: 11, Budget: 20}, {Name: telemetry.PlaceLocal, Root: "/a", Pages: 6, Quarantined: 2},
		{Name: telemetry.PlaceRemote, Root: "/b", Pages: 6, Down: true},
	}, s.look().Tiers)
	first.end()
	second.end()
	require.NoError(t, s.fold())
	require.Equal(t, []telemetry.Tier{
		{Name: telemetry.PlaceLocal, Root: "/a", Pages: 6}, {Name: telemetry.PlaceRemote, Root: "/b", Pages: 6},
	}, s.look().Tiers)
}

// Names are known to some processes, and to the collector.
func TestNamesOfModels(t *testing.T) {
	s := newSite(t)
	named, other, asked := s.process(1), s.process(2), s.process(3)
	named.source.Model.Name = "llama"
	other.source.Process.Engine = telemetry.EngineLlama
	asked.source.Model.Weights = "x"
	for _, p := range []*process{named, other, asked} {
		p.count(1)
	}
	s.folder.name = func(weights string) string { return "asked " + weights }
	require.NoError(t, s.fold())
	state := s.look()
	for _, m := range state.Models {
		require.Equal(t, map[string]string{"w": "llama", "x": "asked x"}[m.Model.Weights], m.Model.Name)
	}
	require.Equal(t, "llama", state.Processes[1].Model.Name)
	s.folder.name = nil
	require.NoError(t, s.fold())
	require.Equal(t, "asked x", s.look().Processes[2].Model.Name, "a process that does not collect keeps names")
}

// TestManyProcessesThatHaveEnded leave two files, of few bytes.
func TestManyProcessesThatHaveEnded(t *testing.T) {
	s := newSite(t)
	held, err := s.lock(lockName) // a collector, which shows their prompts
	require.NoError(t, err)
	s.past = true
	const many = 3 * pastMax
	for i := range many {
		p := s.process(i + 1)
		p.source.Meter.Prompt(telemetry.Prompt{At: testStart, Tokens: 1, Computed: 1})
		p.report()
		p.end()
	}
	for range 2 {
		require.NoError(t, s.fold())
		require.Equal(t, float64(many), total(s.look(), promptsTotal))
	}
	require.Len(t, s.names(), len(settled)+1+pastMax)
	require.Len(t, s.look().Prompts, pastMax)
	require.NoError(t, held.Close())
	s.past = false
	require.NoError(t, s.fold())
	require.Equal(t, []string{foldName, lockName, fileName}, s.names())
	info, err := os.Stat(s.path(fileName))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(8<<10))
	require.Equal(t, float64(many), total(s.look(), promptsTotal))
}

// TestFilesThatAreNoReports are passed over and said once; those of processes that have ended go.
func TestFilesThatAreNoReports(t *testing.T) {
	s := newSite(t)
	good := s.process(1)
	good.count(3)
	text, err := os.ReadFile(s.path(good.name + numbersEnd))
	require.NoError(t, err)
	hole := func(path string) error { return os.WriteFile(path, nil, 0o600) }
	for what, write := range map[string]func(path string) error{
		"empty": hole, "a hole": func(path string) error { return os.Truncate(path, 1<<40) },
		"cut off": func(path string) error { return os.WriteFile(path, text[:len(text)/2], 0o600) },
		"zeros":   func(path string) error { return os.WriteFile(path, make([]byte, 4096), 0o600) },
		"negative": func(path string) error {
			return os.WriteFile(path, []byte(strings.Replace(string(text), `_total":3`, `_total":-3`, 1)), 0o600)
		},
	} {
		bad := s.process(2)
		bad.count(5)
		path := s.path(bad.name + numbersEnd)
		require.NoError(t, write(path), what)
		s.warns.Reset()
		for range 3 {
			require.NoError(t, s.fold())
			require.Equal(t, 3.0, total(s.look(), promptsTotal), what)
		}
		bad.end()
		for range 3 {
			require.NoError(t, s.fold())
			require.Equal(t, 3.0, total(s.look(), promptsTotal), what)
		}
		require.NoFileExists(t, path, what)
		require.Equal(t, 1, strings.Count(s.warns.String(), "a report cannot be used"), what)
	}
	require.NoError(t, os.Symlink("/etc/passwd", s.path(newName()+numbersEnd)))
	require.NoError(t, os.Mkdir(s.path(newName()+numbersEnd), 0o700))
	require.NoError(t, s.fold())
	require.Equal(t, 3.0, total(s.look(), promptsTotal))
}

// TestAReportThatCannotBeReadForNow is added when it can.
func TestAReportThatCannotBeReadForNow(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.count(3)
	p.end()
	s.fault.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRead}, Err: os.ErrDeadlineExceeded})
	require.Error(t, s.fold())
	s.fault.Reset()
	require.Equal(t, 3.0, total(s.look(), promptsTotal))
	require.NoError(t, s.fold())
	require.Equal(t, 3.0, total(s.look(), promptsTotal))
	require.Equal(t, settled, s.names())
}

// TestOtherMachines: where locks do not reach the machine of a process, its file counts and stays for
// a day, as does one whose lock a person has removed.
func TestOtherMachines(t *testing.T) {
	s := newSite(t)
	s.fault.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpLocking}, Err: os.ErrInvalid})
	other, robbed := s.process(1), s.process(2)
	other.source.Process.Boot = "of another machine"
	other.count(3)
	robbed.count(4)
	require.NoError(t, os.Remove(s.path(robbed.name+ownEnd)))
	other.end()
	for range 2 {
		require.NoError(t, s.fold())
		require.FileExists(t, s.path(other.name+numbersEnd))
		require.FileExists(t, s.path(robbed.name+numbersEnd))
		require.Equal(t, 7.0, total(s.look(), promptsTotal))
		require.Empty(t, s.look().Processes)
	}
	robbed.count(1) // locks again
	require.Len(t, s.look().Processes, 1)
	s.now = func() time.Time { return time.Now().Add(orphanAge + time.Hour) }
	require.NoError(t, s.fold())
	require.NoFileExists(t, s.path(other.name+numbersEnd))
	require.Equal(t, 8.0, total(s.look(), promptsTotal))
}

// TestALockThatIsRemoved, of a process that runs and was silent for a day: what was added to the totals
// meanwhile is not told again, and what comes is.
func TestALockThatIsRemoved(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.count(4)
	want := 4.0
	for range 3 {
		require.NoError(t, os.Remove(s.path(p.name+ownEnd)))
		s.now = func() time.Time { return time.Now().Add(orphanAge + time.Hour) }
		require.NoError(t, s.fold())
		require.NoFileExists(t, s.path(p.name+numbersEnd))
		s.now = time.Now
		for range 2 {
			require.Equal(t, want, total(s.look(), promptsTotal))
			p.count(1)
			want++
			require.Equal(t, want, total(s.look(), promptsTotal))
			require.Len(t, s.look().Processes, 1)
			require.NoError(t, s.fold())
		}
	}
	p.end()
	require.NoError(t, s.fold())
	require.Equal(t, want, total(s.look(), promptsTotal))
	require.Equal(t, settled, s.names())
}

// TestAProcessThatRunsIsNotRemoved, whatever the totals say of its name.
func TestAProcessThatRunsIsNotRemoved(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.count(4)
	totals, _, err := s.readTotals()
	require.NoError(t, err)
	totals.Folded = append(totals.Folded, p.name)
	data, err := encode(totals)
	require.NoError(t, err)
	require.NoError(t, s.replace(fileName, data))
	require.NoError(t, s.fold())
	require.FileExists(t, s.path(p.name+numbersEnd))
	require.FileExists(t, s.path(p.name+ownEnd))
}

// TestAReportOfAnotherVersion stays for a program that can read it.
func TestAReportOfAnotherVersion(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.count(3)
	path := s.path(p.name + numbersEnd)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), `"version":1`, `"version":2`, 1)), 0o600))
	p.end()
	for range 2 {
		require.NoError(t, s.fold())
		require.Zero(t, total(s.look(), promptsTotal))
	}
	require.NoError(t, os.WriteFile(path, text, 0o600))
	require.NoError(t, s.fold())
	require.Equal(t, 3.0, total(s.look(), promptsTotal))
	require.Equal(t, settled, s.names())
}

// A clock that goes back by years changes no total, and no time of a state is after its own.
func TestClockJumps(t *testing.T) {
	s := newSite(t)
	s.now = func() time.Time { return time.Now().Add(24 * 365 * time.Hour) }
	require.NoError(t, s.make())
	require.NoError(t, s.fold())
	p := s.process(1)
	p.count(1)
	state := s.look()
	require.False(t, state.Since.After(state.At))
	require.False(t, state.Models[0].LastUsed.After(state.At))
	require.Equal(t, 1.0, total(state, promptsTotal))
}

// TestRandomHistories: processes begin, count, end, lose their lock and are added in any order, and
// the total is always the sum of their counts.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSite(t)
		var running []*process
		want, pid := 0.0, 0
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			do := rapid.IntRange(0, 4).Draw(rt, "do")
			if do == 0 || len(running) == 0 {
				pid++
				running = append(running, s.process(pid))
			}
			i := rapid.IntRange(0, len(running)-1).Draw(rt, "process")
			switch do {
			case 1, 2:
				want++
				running[i].count(1)
			case 3:
				running[i].end()
				running = slices.Delete(running, i, i+1)
			case 4:
				if err := s.make(); err == nil {
					s.past = rapid.Bool().Draw(rt, "collects")
					require.NoError(t, s.fold())
				}
			}
			if want > 0 {
				require.Equal(t, want, total(s.look(), promptsTotal))
			}
		}
		for _, p := range running {
			p.end()
		}
		if want > 0 {
			s.past = false
			require.NoError(t, s.fold())
			require.Equal(t, want, total(s.look(), promptsTotal))
			require.Equal(t, settled, s.names())
		}
	})
}
