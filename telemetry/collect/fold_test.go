package collect

import (
	"errors"
	"fmt"
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
	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/telemetry"
)

// TestAProcessEndsAtEachStep of adding others: its last report counts. Who reads meanwhile sees each
// process once.
func TestAProcessEndsAtEachStep(t *testing.T) {
	s := newSite(t)
	want := 0.0
	for step, passed := int32(1), false; !passed; step++ {
		p, ended := s.process(1), s.process(2)
		p.count(1)
		ended.count(3)
		ended.end()
		want += 4
		var steps atomic.Int32
		s.fault.Watch(func(vfs.Op, ...string) {
			n := steps.Add(1)
			require.Equal(t, want, total(s.look(), promptsTotal), "step %d of %d", n, step)
			if n == step { // its own steps come before its report
				p.count(1)
				p.end()
				want++
			}
		})
		require.NoError(t, s.fold())
		passed = steps.Load() < step
		s.fault.Watch(nil)
		if passed {
			want++
			p.count(1)
			p.end()
		}
		require.Equal(t, want, total(s.look(), promptsTotal), "step %d", step)
	}
	require.NoError(t, s.fold())
	require.Equal(t, want, total(s.look(), promptsTotal))
	require.Equal(t, settled, s.names())
}

// TestAReaderWhileOthersFold: a reader finds reports, and before it reads the totals they are added, and
// many others.
func TestAReaderWhileOthersFold(t *testing.T) {
	s := newSite(t)
	end := func(many int) {
		for i := range many {
			p := s.process(i + 1)
			p.count(1)
			p.end()
		}
	}
	end(1)
	names, err := s.list()
	require.NoError(t, err)
	entries := s.scan(names)
	end(198)
	require.NoError(t, s.fold())
	end(1)
	require.NoError(t, s.fold())
	totals, _, err := s.readTotals()
	require.NoError(t, err)
	totals.leaveOut(entries)
	require.Equal(t, 200.0, total(totals.state(s.root, entries), promptsTotal))
}

// Models are apart by weights, namespace and engine, and only so many: the first, in the order of their
// processes, keep their totals, in any order of ends.
func TestModels(t *testing.T) {
	s := newSite(t)
	const many = telemetry.ModelsMax + 20
	var all []*process
	for i := range many {
		p := s.process(i + 1)
		p.source.Started = testStart.Add(time.Duration(i) * time.Second)
		switch i {
		case 0:
		case 1:
			p.source.Model.Namespace = "n"
		case 2:
			p.source.Process.Engine = telemetry.EngineLlama
		default:
			p.source.Model.Weights = fmt.Sprint("w", i)
		}
		p.count(float64(i + 1))
		all = append(all, p)
	}
	of := func() map[modelKey]float64 {
		totals := make(map[modelKey]float64)
		for _, m := range s.look().Models {
			totals[keyOf(m)] = m.Totals[promptsTotal]
		}
		return totals
	}
	want := of()
	require.Len(t, want, telemetry.ModelsMax)
	require.Equal(t, 1.0, want[modelKey{"w", "", telemetry.EngineOllama}])
	require.Equal(t, 2.0, want[modelKey{"w", "n", telemetry.EngineOllama}])
	require.Equal(t, 3.0, want[modelKey{"w", "", telemetry.EngineLlama}])
	for _, i := range []int{many - 1, 0, 70, 40} {
		all[i].end()
		require.NoError(t, s.fold())
		require.Equal(t, want, of())
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

// Names are known to some processes, to others with the same weights, or to the store of models, whose
// disk may hang; they outlive the process.
func TestNamesOfModels(t *testing.T) {
	s := newSite(t)
	named, other, asked, hangs := s.process(1), s.process(2), s.process(3), s.process(4)
	named.source.Model.Name = "llama"
	other.source.Process.Engine = telemetry.EngineLlama
	asked.source.Model.Weights, hangs.source.Model.Weights = "x", "y"
	asked.opt.Names = func() modelnames.Names { return modelnames.Names{"x": {"of the store"}, "w": {"another"}} }
	answer := make(chan struct{})
	hangs.opt.Names = func() modelnames.Names { <-answer; return nil }
	defer close(answer)
	var stops []func()
	for _, p := range []*process{named, other, asked, hangs} {
		stops = append(stops, p.push())
	}
	want := map[string]string{"w": "llama", "x": "of the store", "y": ""}
	agree := func(state telemetry.State) bool {
		return len(state.Models) == 4 && !slices.ContainsFunc(state.Models, func(m telemetry.ModelState) bool { return m.Model.Name != want[m.Model.Weights] })
	}
	await(t, "names", func() bool {
		told, err := s.tell() // fails until one has reported
		return err == nil && len(told.Processes) == 4 && agree(told.State) && told.Processes[1].Model.Name == "llama"
	})
	for _, stop := range stops {
		stop()
	}
	require.NoError(t, s.fold())
	require.True(t, agree(s.look()))
}

// TestManyProcessesThatHaveEnded leave two files, of few bytes, and the prompts of the latest.
func TestManyProcessesThatHaveEnded(t *testing.T) {
	s := newSite(t)
	const many = 3 * pastMax
	for i := range many {
		p := s.process(i + 1)
		p.prompt(0)
		p.report()
		p.end()
	}
	for range 2 {
		require.NoError(t, s.fold())
		require.Equal(t, float64(many), total(s.look(), promptsTotal))
		require.Len(t, s.names(), len(settled)+pastMax)
		require.Len(t, s.look().Prompts, pastMax)
	}
	info, err := os.Stat(s.path(totalsName))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(8<<10))
	require.NoError(t, Forget(t.Context(), s.root, func(telemetry.Model) bool { return true }))
	require.Equal(t, settled, s.names())
}

// TestMoreProcessesThanAreRead, as many that start on a full disk leave: a reader says so, and the next one
// finds the reports.
func TestMoreProcessesThanAreRead(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.count(3)
	p.end()
	for range processesMax {
		require.NoError(t, os.WriteFile(s.path(newName()+lockEnd), nil, 0o600))
	}
	_, err := Read(t.Context(), s.root)
	require.ErrorContains(t, err, "more than 1024 processes")
	require.Equal(t, 3.0, total(s.read(), promptsTotal))
	require.NoError(t, s.fold())
	require.Equal(t, settled, s.names())
}

// TestAFileThatStays, as it cannot be removed, keeps no other one, and is added once.
func TestAFileThatStays(t *testing.T) {
	s := newSite(t)
	const many = pastMax + 9
	for i := range many {
		p := s.process(i + 1)
		p.prompt(0)
		p.report()
		p.end()
		if i == 0 {
			require.NoError(t, os.MkdirAll(filepath.Join(s.path(p.name+numbersEnd+tmpEnd), "not empty"), 0o700))
		}
	}
	for range 2 {
		require.Error(t, s.fold())
		require.Equal(t, float64(many), total(s.look(), promptsTotal))
		require.Len(t, s.look().Prompts, pastMax)
	}
}

// TestFilesThatAreNoReports are passed over and said once; those of processes that have ended go.
func TestFilesThatAreNoReports(t *testing.T) {
	s := newSite(t)
	good := s.process(1)
	good.count(3)
	text, err := os.ReadFile(s.path(good.name + numbersEnd))
	require.NoError(t, err)
	for what, write := range map[string]func(path string) error{
		"empty":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"a hole":  func(path string) error { return os.Truncate(path, 1<<40) },
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
		for _, runs := range []bool{true, false} {
			if !runs {
				bad.end()
			}
			for range 2 {
				require.NoError(t, s.fold())
				require.Equal(t, 3.0, total(s.look(), promptsTotal), what)
			}
		}
		require.NoFileExists(t, path, what)
		require.Equal(t, 1, strings.Count(s.warns.String(), "a report cannot be used"), what)
	}
	require.NoError(t, os.Symlink("/etc/passwd", s.path(newName()+numbersEnd)))
	require.NoError(t, os.Mkdir(s.path(newName()+numbersEnd), 0o700))
	require.NoError(t, s.fold())
	require.Equal(t, 3.0, total(s.look(), promptsTotal))
}

// TestAReportThatIsReadLater, because the disk fails, or because another version wrote it, stays and is
// added then.
func TestAReportThatIsReadLater(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.count(3)
	p.end()
	s.fault.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRead}, Err: os.ErrDeadlineExceeded})
	require.Error(t, s.fold())
	s.fault.Reset()
	require.Equal(t, 3.0, total(s.look(), promptsTotal))

	path := s.path(p.name + numbersEnd)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), `"version":1`, `"version":2`, 1)), 0o600))
	for range 2 {
		require.NoError(t, s.fold())
		require.Zero(t, total(s.look(), promptsTotal))
	}
	require.NoError(t, os.WriteFile(path, text, 0o600))
	require.NoError(t, s.fold())
	require.Equal(t, 3.0, total(s.look(), promptsTotal))
	require.Equal(t, settled, s.names())
}

// TestOtherMachines: the file of a process of another machine counts and stays for a day, as does one
// whose lock a person has removed.
func TestOtherMachines(t *testing.T) {
	s := newSite(t)
	other, robbed := s.process(1), s.process(2)
	other.source.Process.Boot = "of another machine"
	other.count(3)
	robbed.count(4)
	require.NoError(t, os.Remove(s.path(robbed.name+lockEnd)))
	other.end()
	for range 2 {
		require.NoError(t, s.fold())
		require.FileExists(t, s.path(other.name+numbersEnd))
		require.FileExists(t, s.path(robbed.name+numbersEnd))
		require.Equal(t, 7.0, total(s.look(), promptsTotal))
		require.Empty(t, s.look().Processes)
	}
	former := robbed.name
	robbed.count(1) // locks again
	require.Len(t, s.look().Processes, 1)
	s.makeOld(other.name)
	s.makeOld(former)
	require.NoError(t, s.fold())
	require.NoFileExists(t, s.path(other.name+numbersEnd))
	require.NoFileExists(t, s.path(former+numbersEnd))
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
		require.NoError(t, os.Remove(s.path(p.name+lockEnd)))
		s.makeOld(p.name)
		require.NoError(t, s.fold())
		require.NoFileExists(t, s.path(p.name+numbersEnd))
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
	require.NoError(t, s.replace(totalsName, data))
	require.NoError(t, s.fold())
	require.FileExists(t, s.path(p.name+numbersEnd))
	require.FileExists(t, s.path(p.name+lockEnd))
}

// TestAClockThatWasWrong: times of ten years later are as of their reading, and the newest report counts.
func TestAClockThatWasWrong(t *testing.T) {
	s := newSite(t)
	later := time.Now().AddDate(10, 0, 0)
	require.NoError(t, s.make())
	require.NoError(t, os.WriteFile(s.path(totalsName), fmt.Appendf(nil, `{"version":2,"since":%q}`, later.Format(time.RFC3339)), 0o600))
	for pages, at := range []time.Time{later, {}} {
		p := s.process(1)
		p.source.Fill = func(r *telemetry.Report) {
			r.Tiers = []telemetry.Tier{{Name: telemetry.PlaceLocal, Root: "/x", Pages: pages}}
			if !at.IsZero() {
				r.At = at
			}
		}
		if p.count(1); !at.IsZero() {
			p.end()
			require.NoError(t, s.fold())
		}
	}
	state := s.look()
	require.False(t, state.Since.After(state.At))
	require.False(t, state.Models[0].LastUsed.After(state.At))
	require.Equal(t, 1, state.Tiers[0].Pages)
	require.Equal(t, 2.0, total(state, promptsTotal))
}

// TestAClockThatGoesBack: what was reported before is not newer than the report of a process that runs.
func TestAClockThatGoesBack(t *testing.T) {
	s := newSite(t)
	later := time.Now().Add(time.Hour).Format(time.RFC3339)
	require.NoError(t, s.make())
	require.NoError(t, os.WriteFile(s.path(totalsName), fmt.Appendf(nil, `{"version":2,"models":[{"model":{"weights":"w","page_tokens":1},"engine":"ollama","last_used":%[1]q}],
		"tiers":[{"name":"local","root":"/x","pages":7,"at":%[1]q}]}`, later), 0o600))
	p := s.process(1)
	p.source.Fill = func(r *telemetry.Report) {
		r.Tiers = []telemetry.Tier{{Name: telemetry.PlaceLocal, Root: "/x", Pages: 1}}
	}
	p.count(1)
	state := s.look()
	require.Equal(t, 1, state.Tiers[0].Pages)
	require.Equal(t, 256, state.Models[0].Model.PageTokens)
	require.False(t, state.Models[0].LastUsed.After(state.At))
}

// TestRandomHistories: processes begin, count, end, lose their lock and are added in any order, and
// the total is always the sum of their counts.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSite(t)
		var running []*process
		want, pid := 0.0, 0
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			do := rapid.IntRange(0, 5).Draw(rt, "do")
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
					require.NoError(t, s.fold())
				}
			case 5:
				_ = s.remove(running[i].name + lockEnd)
			}
			if want > 0 {
				require.Equal(t, want, total(s.look(), promptsTotal))
			}
		}
		for _, p := range running {
			p.end()
		}
		if want > 0 {
			require.NoError(t, s.fold())
			require.Equal(t, want, total(s.look(), promptsTotal))
			require.Empty(t, s.look().Processes)
		}
	})
}

// Totals that cannot be used are an error for readers. Who starts sets them aside, and they begin anew.
func TestTotalsThatCannotBeUsed(t *testing.T) {
	text := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
	}
	for name, make := range map[string]func(path string) error{
		"empty": text(""), "cut off": text(`{"version":2,`), "zeros": text(string(make([]byte, 4096))), "future": text(`{"version":3}`),
		"a hole":           func(path string) error { return errors.Join(text("")(path), os.Truncate(path, 1<<40)) },
		"a directory":      func(path string) error { return os.Mkdir(path, 0o700) },
		"a link":           func(path string) error { return os.Symlink("/etc/passwd", path) },
		"a negative total": text(`{"version":2,"models":[{"totals":{"x":-1}}]}`),
		"twice":            text(`{"version":2,"models":[{},{}]}`),
		"too many models":  text(`{"version":2,"models":[` + strings.Repeat("{},", telemetry.ModelsMax) + `{}]}`),
		"many objects":     text(`{"version":2,"models":[` + strings.Repeat("{},", 1<<20) + `{}]}`),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			require.NoError(t, s.make())
			for range 2 { // also where there is a file that was set aside
				require.NoError(t, make(s.path(totalsName)))
				_, err := Read(t.Context(), s.root)
				require.Error(t, err)
				p := s.process(1)
				p.count(1)
				state := s.read()
				require.Equal(t, 1.0, total(state, promptsTotal))
				_, err = os.Lstat(s.path(asideName))
				require.NoError(t, err)
				require.True(t, state.Since.Equal(s.read().Since))
				p.end()
				require.NoError(t, s.remove(totalsName))
				require.NoError(t, s.remove(p.name+numbersEnd))
			}
		})
	}
}
