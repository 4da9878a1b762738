package collect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/telemetry"
)

// everyModel picks every model.
func everyModel(telemetry.Model) bool { return true }

// withWords is a state with the words of a namespace.
func (s *site) withWords(namespace string) telemetry.State {
	s.t.Helper()
	state, err := ReadWords(s.t.Context(), s.root, namespace)
	require.NoError(s.t, err)
	return state
}

// with are the files that have a text.
func (s *site) with(text string) (found []string) {
	for _, name := range s.names() {
		if data, err := os.ReadFile(s.path(name)); err == nil && strings.Contains(string(data), text) {
			found = append(found, name)
		}
	}
	return found
}

// Words are shown for the namespace that is asked for, also when their process has ended, never in the
// state, and never those of private prompts, which are in no file.
func TestWordsAreShownToTheirNamespace(t *testing.T) {
	s := newSite(t)
	tokens := map[string]int32{"": 111111, "team": 222222, "team ": 333333, "\xff": 444444}
	var all []*process
	for namespace, token := range tokens {
		p := s.process(len(all) + 1)
		all = append(all, p)
		p.source = wordsSource(len(all), namespace, token)
		p.report()
		path := s.path(p.name + wordsEnd)
		if namespace == "\xff" { // JSON could give its words to another one
			require.NoFileExists(t, path)
			continue
		}
		require.Equal(t, 2, strings.Count(p.words(), `"words"`), "of the prompt that is not private, and of the place")
		info, err := os.Lstat(path)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode())
	}
	check := func(running int) {
		for _, asked := range []string{"", "team", "team ", "other"} {
			state := s.withWords(asked)
			require.Len(t, state.Prompts, 6)
			require.Len(t, state.Processes, running)
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
		require.Zero(t, wordsIn(s.read()))
	}
	check(len(all))
	for _, p := range all {
		p.end()
	}
	check(0)
	check(0) // they are in the totals
}

// TestTheTotalsHaveNoText of prompts, also of a process that is killed.
func TestTheTotalsHaveNoText(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.source.Meter.Prompt(telemetry.Prompt{At: testStart, Tokens: 9, Computed: 9, Miss: &telemetry.Miss{
		Cause: telemetry.CauseDiffers, At: 54321, Words: &telemetry.Words{Begin: 54300, Was: []int32{123451}, Is: []int32{123452}},
	}})
	p.report()
	numbers, err := os.ReadFile(s.path(p.name + numbersEnd))
	require.NoError(t, err)
	p.end()
	require.NoError(t, s.fold())
	sums, err := os.ReadFile(s.path(totalsName))
	require.NoError(t, err)
	for _, text := range []string{"54321", "54300", "123451", "123452", "words", "miss\""} {
		require.NotContains(t, string(sums), text)
		require.NotContains(t, string(numbers), text)
	}
}

// TestWordsThatAreRemoved do not come back, of a process that runs or has ended, and others stay.
func TestWordsThatAreRemoved(t *testing.T) {
	s := newSite(t)
	var all []*process
	for i, weights := range []string{"gone", "gone", "stays"} {
		p := s.process(i + 1)
		p.source = wordsSource(i+1, "", int32(1000000+i))
		p.source.Model.Weights = weights
		p.report()
		all = append(all, p)
	}
	all[0].end()
	require.NoError(t, s.fold())
	with := func() int { return wordsIn(s.withWords("")) }
	require.Equal(t, 1+2+2, with(), "the place that changes is told of those that run")
	require.NoError(t, Forget(t.Context(), s.root, func(telemetry.Model) bool { return false }))
	require.Equal(t, 1+2+2, with())
	require.NoError(t, Forget(t.Context(), s.root, func(m telemetry.Model) bool { return m.Weights == "gone" }))
	require.Equal(t, 2, with())
	all[1].report()
	require.Equal(t, 2, with(), "nothing has changed")
	all[1].prompt(0)
	all[1].report()
	require.Equal(t, 2, with())
	all[1].prompt(5)
	all[1].report()
	require.Equal(t, 3, with())
	require.Equal(t, 8.0, total(s.read(), promptsTotal), "counts stay")
}

// TestWordsThatAreRemovedAgain, by Forget or by a person, stay away, and those of the next prompt are told.
func TestWordsThatAreRemovedAgain(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.source = wordsSource(1, "", 9000009)
	forget := func() error { return Forget(t.Context(), s.root, everyModel) }
	for i, remove := range []func() error{
		forget,
		forget,
		func() error { return os.Remove(s.path(p.name + wordsEnd)) },
		func() error { return errors.Join(os.Remove(s.path(p.name+lockEnd)), forget()) },
		func() error { return os.RemoveAll(s.dir) },
	} {
		before, after := int32(1000001+i), int32(2000001+i)
		p.prompt(before)
		p.report()
		require.Contains(t, p.words(), fmt.Sprint(before))
		require.NoError(t, remove())
		p.report()
		for range 2 {
			p.prompt(after)
			p.report()
			require.Empty(t, s.with(fmt.Sprint(before)))
			require.Empty(t, s.with("9000009"))
			require.Contains(t, p.words(), fmt.Sprint(after))
		}
	}
}

// TestAPlaceThatIsToldLater: one that had changed before the removal has no Words, one that changes again
// has.
func TestAPlaceThatIsToldLater(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	place := telemetry.Buster{Words: &telemetry.Words{Is: []int32{1000001}}, Changed: time.Now()}
	p.prompt(0)
	p.report()
	require.NoError(t, Forget(t.Context(), s.root, everyModel))
	p.report()
	p.source.Fill = func(r *telemetry.Report) { r.Busters = []telemetry.Buster{place} }
	p.prompt(0)
	p.report()
	require.Empty(t, s.with("1000001"))
	place.Changed = time.Now()
	p.prompt(0)
	p.report()
	require.NotEmpty(t, s.with("1000001"))
}

// TestPromptsAreToldOnce, also by a process that goes on under another name.
func TestPromptsAreToldOnce(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	for range 3 {
		p.prompt(0)
		p.report()
		require.NoError(t, os.Remove(s.path(p.name+lockEnd)))
	}
	require.Len(t, s.look().Prompts, 3)
}

// TestWordsThatAreHardToReach are removed, too, and do not come later.
func TestWordsThatAreHardToReach(t *testing.T) {
	cut := func(p *process) error {
		return os.WriteFile(p.path(p.name+wordsEnd), []byte(strings.TrimRight(p.words(), "}\n")), 0o600)
	}
	for name, prepare := range map[string]func(p *process) error{
		"killed in a write": func(p *process) error {
			p.report()
			defer p.end()
			return os.Rename(p.path(p.name+wordsEnd), p.path(p.name+wordsEnd+tmpEnd))
		},
		"killed in the first write": func(p *process) error {
			p.report()
			defer p.end()
			return errors.Join(os.Remove(p.path(p.name+numbersEnd)), os.Rename(p.path(p.name+wordsEnd), p.path(p.name+wordsEnd+tmpEnd)))
		},
		"of another version": func(p *process) error {
			p.report()
			defer p.end()
			return os.WriteFile(p.path(p.name+wordsEnd), []byte(strings.Replace(p.words(), `"version":1`, `"version":2`, 1)), 0o600)
		},
		"damaged":         func(p *process) error { p.report(); defer p.end(); return cut(p) },
		"damaged, and on": func(p *process) error { p.report(); return cut(p) },
		"no report yet": func(p *process) error {
			p.site.fault.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpWrite}, Err: syscall.ENOSPC})
			p.step()
			return nil
		},
		"no file yet": func(p *process) error {
			p.site.fault.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpLock}, Err: syscall.ENOSPC})
			p.step()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			p := s.process(1)
			p.prompt(1000001)
			require.NoError(t, prepare(p))
			runs := p.lock != nil || p.failures > 0
			require.NoError(t, Forget(t.Context(), s.root, func(m telemetry.Model) bool { return m.Weights == "w" || m == telemetry.Model{} }))
			s.fault.Reset()
			if runs {
				p.report()
				p.prompt(1000002)
				p.report()
				require.NotEmpty(t, s.with("1000002"))
			}
			require.Empty(t, s.with("1000001"))
		})
	}
}

// TestWordsThatAreWrittenWhileTheyAreRemoved: whenever the removal comes, words of before do not come
// back, whether they were in a file or in memory alone. Later ones are told.
func TestWordsThatAreWrittenWhileTheyAreRemoved(t *testing.T) {
	for step, passed := int32(1), false; !passed; step++ {
		s := newSite(t)
		p := s.process(1)
		if step%2 == 0 {
			p.prompt(1000001)
			p.report()
			require.Contains(t, p.words(), "1000001")
		} else {
			require.NoError(t, p.open())
		}
		p.prompt(1000002)
		forgotten := make(chan error, 1)
		forget := func() { forgotten <- Forget(t.Context(), s.root, everyModel) }
		var steps atomic.Int32
		s.fault.Watch(func(vfs.Op, ...string) {
			switch writing, err := vfs.Held(s.path(foldName)); {
			case steps.Add(1) != step:
			case err == nil && writing:
				go forget() // it waits for the end of the write
			default:
				forget()
			}
		})
		p.report()
		s.fault.Watch(nil)
		if passed = steps.Load() < step; passed {
			forget()
		}
		require.NoError(t, <-forgotten)
		p.report()
		p.prompt(1000003)
		p.report()
		require.NotContains(t, p.words(), "1000001", "step %d", step)
		require.NotContains(t, p.words(), "1000002", "step %d", step)
		require.Contains(t, p.words(), "1000003", "step %d", step)
	}
}

// TestForgettingGoesOn: a file of prompts that goes meanwhile is no error, and one that cannot be
// removed keeps no other one. Nobody's choice leaves files that cannot be read.
func TestForgettingGoesOn(t *testing.T) {
	s := newSite(t)
	require.NoError(t, s.make())
	made := testSource(1).Report()
	good, err := encode(takePrompts(&made))
	require.NoError(t, err)
	var names []string
	for range 4 {
		names = append(names, newName())
	}
	write := func(data []byte) {
		for _, name := range names {
			require.NoError(t, os.WriteFile(s.path(name+wordsEnd), data, 0o600))
		}
	}
	remain := func() []string {
		found, err := filepath.Glob(s.path("*" + wordsEnd))
		require.NoError(t, err)
		return found
	}
	write([]byte("no report"))
	require.NoError(t, Forget(t.Context(), s.root, func(telemetry.Model) bool { return false }))
	require.Len(t, remain(), len(names))
	blocked := s.path(names[1] + wordsEnd) // a folder that is not empty
	require.NoError(t, os.Remove(blocked))
	require.NoError(t, os.MkdirAll(filepath.Join(blocked, "a"), 0o700))
	_ = Forget(t.Context(), s.root, everyModel)
	require.Equal(t, []string{blocked}, remain())

	require.NoError(t, os.RemoveAll(blocked))
	write(good)
	require.NoError(t, Forget(t.Context(), s.root, func(telemetry.Model) bool {
		for _, path := range remain() { // they are old
			require.NoError(t, os.Remove(path))
		}
		return true
	}))
	require.Empty(t, remain())
}
