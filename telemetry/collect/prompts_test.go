package collect

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

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
	p.source = wordsSource(1, "", 1000001)
	p.report()
	require.Contains(t, p.words(), "1000001")
	for _, remove := range []func() error{
		func() error { return Forget(t.Context(), s.root, everyModel) },
		func() error { return Forget(t.Context(), s.root, everyModel) },
		func() error { return os.Remove(s.path(p.name + wordsEnd)) },
	} {
		require.NoError(t, remove())
		p.report()
		for range 2 {
			p.prompt(2000002)
			p.report()
			require.NotContains(t, p.words(), "1000001")
			require.Contains(t, p.words(), "2000002")
		}
	}
}

// TestWordsThatAreWrittenWhileTheyAreRemoved: whenever the removal comes, words of before do not come
// back, whether they were in a file or in memory alone. Later ones are told.
func TestWordsThatAreWrittenWhileTheyAreRemoved(t *testing.T) {
	for step, passed := int32(1), false; !passed; step++ {
		s := newSite(t)
		p := s.process(1)
		if p.report(); step%2 == 0 {
			p.prompt(1000001)
			p.report()
			require.Contains(t, p.words(), "1000001")
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
	asked := 0
	require.NoError(t, Forget(t.Context(), s.root, func(telemetry.Model) bool {
		for _, path := range remain() { // they are old
			require.NoError(t, os.Remove(path))
		}
		asked++
		return true
	}))
	require.Equal(t, 1, asked)
}
