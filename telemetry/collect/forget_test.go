package collect

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/telemetry"
)

// TestForgettingGoesOn: a file of prompts that goes meanwhile is no error, and one that cannot be
// removed keeps no other one.
func TestForgettingGoesOn(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, directoryName)
	require.NoError(t, os.Mkdir(dir, 0o700))
	var names []string
	for range 4 {
		name := newName()
		names = append(names, name)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+wordsEnd), []byte("{}"), 0o600))
	}
	blocked := filepath.Join(dir, names[1]+wordsEnd) // a folder that is not empty
	require.NoError(t, os.Remove(blocked))
	require.NoError(t, os.MkdirAll(filepath.Join(blocked, "a"), 0o700))

	_ = Forget(t.Context(), root, func(telemetry.Model) bool { return true })
	for _, name := range []string{names[0], names[2], names[3]} {
		require.NoFileExists(t, filepath.Join(dir, name+wordsEnd))
	}

	require.NoError(t, os.RemoveAll(blocked))
	made := testSource(1).Report()
	data := zipped(t, takePrompts(&made))
	remain := func() []string {
		found, err := filepath.Glob(filepath.Join(dir, "*"+wordsEnd))
		require.NoError(t, err)
		return found
	}
	for _, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+wordsEnd), data, 0o600))
	}
	asked := 0
	require.NoError(t, Forget(t.Context(), root, func(telemetry.Model) bool {
		for _, path := range remain() { // their processes have ended
			require.NoError(t, os.Remove(path))
		}
		asked++
		return true
	}))
	require.Equal(t, 1, asked)
}

// TestWordsThatAreWrittenWhileTheyAreRemoved: whenever the removal comes, words of before do not come
// back, whether they were in a file or in memory alone. Later ones are told.
func TestWordsThatAreWrittenWhileTheyAreRemoved(t *testing.T) {
	for step, passed := int32(1), false; !passed; step++ {
		s := newSite(t)
		p := s.process(1)
		prompt := func(token int32) {
			words := &telemetry.Words{Is: []int32{token}}
			p.source.Meter.Prompt(telemetry.Prompt{At: testStart, Tokens: 9, Computed: 9, Miss: &telemetry.Miss{Cause: telemetry.CauseDiffers, Words: words}})
		}
		path := s.path(p.name + wordsEnd)
		if p.report(); step%2 == 0 {
			prompt(1000001)
			p.report()
			require.Contains(t, unzipped(t, path), "1000001")
		}
		prompt(1000002)
		forgotten := make(chan error, 1)
		forget := func() { forgotten <- Forget(t.Context(), s.root, func(telemetry.Model) bool { return true }) }
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
		prompt(1000003)
		p.report()
		text := unzipped(t, path)
		require.NotContains(t, text, "1000001", "step %d", step)
		require.NotContains(t, text, "1000002", "step %d", step)
		require.Contains(t, text, "1000003", "step %d", step)
	}
}

// TestWordsThatAreRemovedTwice: the second removal keeps those of the first away, too.
func TestWordsThatAreRemovedTwice(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.source = wordsSource(1, "", 1000001)
	p.report()
	path := s.path(p.name + wordsEnd)
	require.Contains(t, unzipped(t, path), "1000001")
	for range 3 {
		require.NoError(t, Forget(t.Context(), s.root, func(telemetry.Model) bool { return true }))
		for range 2 {
			p.source.Meter.Prompt(telemetry.Prompt{At: testStart, Tokens: 9, Computed: 9})
			p.report()
			require.NotContains(t, unzipped(t, path), "1000001")
		}
	}
}

// TestWordsThatAPersonRemoves do not come back, and those of the next prompt are told.
func TestWordsThatAPersonRemoves(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.source = wordsSource(1, "", 1000001)
	p.report()
	path := s.path(p.name + wordsEnd)
	require.NoError(t, os.Remove(path))
	p.report()
	p.source.Meter.Prompt(telemetry.Prompt{At: testStart, Tokens: 9, Computed: 9, Miss: &telemetry.Miss{Cause: telemetry.CauseDiffers, Words: &telemetry.Words{Is: []int32{1000002}}}})
	p.report()
	text := unzipped(t, path)
	require.NotContains(t, text, "1000001")
	require.Contains(t, text, "1000002")
}

// TestNothingIsForgottenThatNobodyPicks, also no file that cannot be read.
func TestNothingIsForgottenThatNobodyPicks(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, directoryName)
	require.NoError(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, newName()+wordsEnd)
	require.NoError(t, os.WriteFile(path, []byte("{}"), 0o600))
	require.NoError(t, Forget(t.Context(), root, func(telemetry.Model) bool { return false }))
	require.FileExists(t, path)
}
