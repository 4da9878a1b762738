package vfs

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// at makes a path below a Mem's root.
func at(elements ...string) string {
	return string(filepath.Separator) + filepath.Join(elements...)
}

// tree lists the whole content of a Mem: directories end in a separator, files have their content.
func tree(t *testing.T, m *Mem) map[string]string {
	t.Helper()
	found := map[string]string{}
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := m.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if e.IsDir() {
				found[path+"/"] = ""
				walk(path)
			} else {
				found[path] = content(t, m, path)
			}
		}
	}
	walk(at())
	return found
}

// unsynced makes a file without syncing anything.
func unsynced(t *testing.T, m *Mem, name, text string) {
	t.Helper()
	f, err := m.Create(name)
	require.NoError(t, err)
	_, err = f.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// crashes counts the outcomes of crashes in which each piece survives with probability one half.
func crashes(t *testing.T, m *Mem) map[string]int {
	t.Helper()
	outcomes := map[string]int{}
	for seed := range uint64(200) {
		var names []string
		for name, text := range tree(t, m.Crash(0.5, seed)) {
			names = append(names, name+text)
		}
		slices.Sort(names)
		outcomes[strings.Join(names, " ")]++
	}
	return outcomes
}

func requireOutcomes(t *testing.T, m *Mem, want ...string) {
	t.Helper()
	require.ElementsMatch(t, want, slices.Collect(maps.Keys(crashes(t, m))))
}

func TestCrashKeepsWhatWasSynced(t *testing.T) {
	m := NewMem(1 << 20)
	require.NoError(t, m.Mkdir(at("d")))
	write(t, m, at("d", "f"), "content") // synced, its name is not
	require.Empty(t, tree(t, m.Crash(0, 1)))
	require.NoError(t, m.SyncDir(at("d")))
	require.Empty(t, tree(t, m.Crash(0, 1)), "the name of the directory is not durable")
	require.NoError(t, m.SyncDir(at()))
	all := map[string]string{at("d") + "/": "", at("d", "f"): "content"}
	require.Equal(t, all, tree(t, m.Crash(0, 1)))

	unsynced(t, m, at("d", "g"), "more")
	require.NoError(t, m.SyncDir(at("d")))
	all[at("d", "g")] = ""
	require.Equal(t, all, tree(t, m.Crash(0, 1)), "a durable name of a file that was not synced")
	all[at("d", "g")] = "more"
	require.Equal(t, all, tree(t, m.Crash(1, 1)))
	require.Equal(t, all, tree(t, m), "the original is as it was")
}

func TestCrashOfEverythingUnsynced(t *testing.T) {
	m := NewMem(1 << 20)
	require.NoError(t, m.Mkdir(at("d")))
	unsynced(t, m, at("d", "f"), "x")
	before := tree(t, m)
	require.Equal(t, before, tree(t, m.Crash(1, 1)))
	require.Equal(t, before, tree(t, m.Clone()))
	crashed := m.Crash(1, 2)
	require.Equal(t, before, tree(t, crashed.Crash(0, 3)), "after a crash all is durable")
	unsynced(t, crashed, at("d", "g"), "y")
	require.Equal(t, before, tree(t, crashed.Crash(0, 3)))
	require.Equal(t, before, tree(t, m), "copies share nothing that changes")
}

// TestDurableMem: a crash loses nothing, and a node without a name is gone.
func TestDurableMem(t *testing.T) {
	m := NewDurableMem(1 << 20)
	require.NoError(t, m.Mkdir(at("a")))
	unsynced(t, m, at("a", "b"), "text")
	unsynced(t, m, at("a", "gone"), "")
	require.NoError(t, m.Rename(at("a", "b"), at("c")))
	require.NoError(t, m.Remove(at("a", "gone")))
	want := map[string]string{at("a") + "/": "", at("c"): "text"}
	crashed := m.Crash(0, 1)
	require.Equal(t, want, tree(t, crashed))
	unsynced(t, crashed, at("d"), "")
	require.Contains(t, tree(t, crashed.Crash(0, 1)), at("d"))
	require.Equal(t, want, tree(t, m.Clone()))
	require.Empty(t, m.root.changes)
	require.Empty(t, m.root.names["a"].changes)
}

func TestCrashOfNames(t *testing.T) {
	// Of two names made in one directory, any subset may survive.
	m := NewMem(1 << 20)
	write(t, m, at("a"), "1")
	write(t, m, at("b"), "2")
	requireOutcomes(t, m, "", at("a")+"1", at("b")+"2", at("a")+"1 "+at("b")+"2")

	// A rename within a directory is one step, and replaces in one step.
	require.NoError(t, m.SyncDir(at()))
	require.NoError(t, m.Rename(at("a"), at("b")))
	requireOutcomes(t, m, at("a")+"1 "+at("b")+"2", at("b")+"1")

	// A removal may be undone.
	m = NewMem(1 << 20)
	write(t, m, at("a"), "1")
	require.NoError(t, m.SyncDir(at()))
	require.NoError(t, m.Remove(at("a")))
	requireOutcomes(t, m, "", at("a")+"1")
}

func TestCrashOfRenameToAnotherDirectory(t *testing.T) {
	m := NewMem(1 << 20)
	for _, dir := range []string{at("p"), at("q")} {
		require.NoError(t, m.Mkdir(dir))
	}
	write(t, m, at("p", "a"), "1")
	for _, dir := range []string{at("p"), at("q"), at()} {
		require.NoError(t, m.SyncDir(dir))
	}
	require.NoError(t, m.Rename(at("p", "a"), at("q", "b")))
	dirs := at("p") + "/ " + at("q") + "/"
	both := at("p") + "/ " + at("p", "a") + "1 " + at("q") + "/ " + at("q", "b") + "1"
	to, from := dirs+" "+at("q", "b")+"1", at("p")+"/ "+at("p", "a")+"1 "+at("q")+"/"
	requireOutcomes(t, m, dirs, both, to, from)
	require.NoError(t, m.SyncDir(at("q")))
	requireOutcomes(t, m, both, to)
	require.NoError(t, m.SyncDir(at("p")))
	requireOutcomes(t, m, to)
}

func TestCrashOfMovedDirectories(t *testing.T) {
	m := NewMem(1 << 20)
	require.NoError(t, m.Mkdir(at("a")))
	require.NoError(t, m.Mkdir(at("a", "b")))
	write(t, m, at("a", "b", "f"), "1")
	for _, dir := range []string{at("a", "b"), at("a"), at()} {
		require.NoError(t, m.SyncDir(dir))
	}
	require.NoError(t, m.Rename(at("a", "b"), at("b")))
	require.NoError(t, m.Rename(at("a"), at("b", "a")))
	for seed := range uint64(100) {
		tree(t, m.Crash(0.5, seed)) // tree ends: no directory is inside itself
	}
}

func TestCrashOfData(t *testing.T) {
	m := NewMem(1 << 20)
	f, err := m.Create(at("f"))
	require.NoError(t, err)
	defer f.Close()
	_, err = f.Write(bytes.Repeat([]byte("a"), 1000))
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, m.SyncDir(at()))
	_, err = f.Write(bytes.Repeat([]byte("b"), 3*memBlock))
	require.NoError(t, err)
	when := time.Unix(1_600_000_000, 0)
	require.NoError(t, m.Chtimes(at("f"), when, when))

	type outcome struct{ blocks, zero, garbage, grown, times bool }
	seen := map[outcome]bool{}
	for seed := range uint64(500) {
		crashed := m.Crash(0.5, seed)
		got := content(t, crashed, at("f"))
		require.GreaterOrEqual(t, len(got), 1000)
		require.LessOrEqual(t, len(got), 1000+3*memBlock)
		require.Equal(t, strings.Repeat("a", 1000), got[:1000], "synced data")
		var o outcome
		for off := 1000; off < len(got); {
			next := min((off/memBlock+1)*memBlock, len(got))
			switch block := got[off:next]; block {
			case strings.Repeat("b", len(block)):
				o.blocks = true
			case strings.Repeat("\x00", len(block)):
				o.zero = true
			default:
				o.garbage = true
			}
			off = next
		}
		info, err := crashed.Lstat(at("f"))
		require.NoError(t, err)
		o.grown, o.times = len(got) > 1000, info.ModTime().Equal(when)
		seen[o] = true
		require.Equal(t, got, content(t, m.Crash(0.5, seed), at("f")), "a seed gives one result")
	}
	some := func(what string, match func(outcome) bool) {
		for o := range seen {
			if match(o) {
				return
			}
		}
		require.Fail(t, "never seen", what)
	}
	some("nothing survived", func(o outcome) bool { return !o.grown })
	some("times alone survived", func(o outcome) bool { return !o.grown && o.times })
	some("data without times", func(o outcome) bool { return o.blocks && !o.zero && !o.garbage && !o.times })
	some("a hole of zeros", func(o outcome) bool { return o.blocks && o.zero })
	some("a hole of garbage", func(o outcome) bool { return o.blocks && o.garbage })

	require.NoError(t, f.Sync())
	require.Len(t, content(t, m.Crash(0, 1), at("f")), 1000+3*memBlock)
	info, err := m.Crash(0, 1).Lstat(at("f"))
	require.NoError(t, err)
	require.True(t, info.ModTime().Equal(when), "a sync covers the times")
}

func TestCrashSparesOtherMachines(t *testing.T) {
	m := NewMem(1 << 20)
	for _, dir := range []string{"p", "q"} {
		require.NoError(t, m.Mkdir(at(dir)))
		unsynced(t, m, at(dir, "f"), "x")
	}
	require.NoError(t, m.SyncDir(at()))
	require.Equal(t, map[string]string{at("p") + "/": "", at("q") + "/": "", at("q", "f"): "x"},
		tree(t, m.Crash(0, 1, at("q"))))
}

func TestCrashEndsLocksAndOpenFiles(t *testing.T) {
	m := NewMem(1 << 20)
	held, err := m.Lock(at("lock"))
	require.NoError(t, err)
	unsynced(t, m, at("f"), "x")
	f, err := m.Open(at("f"))
	require.NoError(t, err)
	require.NoError(t, m.Remove(at("f")))
	for _, crashed := range []*Mem{m.Crash(1, 1), m.Clone()} {
		lock, err := crashed.Lock(at("lock"))
		require.NoError(t, err)
		require.NoError(t, lock.Close())
	}
	require.NoError(t, held.Close())
	_, err = f.ReadAt(make([]byte, 1), 0)
	require.NoError(t, err, "open files stay with the original")
	require.NoError(t, f.Close())
}

// TestCloneCrashesAlike: a clone knows which data is on the device.
func TestCloneCrashesAlike(t *testing.T) {
	m := NewMem(1 << 20)
	require.NoError(t, m.Mkdir(at("d")))
	require.NoError(t, m.SyncDir(at()))
	for i := range 4 {
		write(t, m, at("d", fmt.Sprint(i)), fmt.Sprint(i))
	}
	require.NoError(t, m.SyncDir(at("d")))
	require.NoError(t, m.Rename(at("d", "0"), at("d", "1")))
	require.NoError(t, m.Remove(at("d", "2")))
	require.NoError(t, m.Rename(at("d", "3"), at("3")))
	unsynced(t, m, at("d", "4"), "4")
	clone := m.Clone()
	for seed := range uint64(50) {
		require.Equal(t, tree(t, m.Crash(0.5, seed)), tree(t, clone.Crash(0.5, seed)))
	}
}

func TestEdit(t *testing.T) {
	m := NewMem(1 << 20)
	write(t, m, at("f"), "abc")
	require.NoError(t, m.Edit(at("f"), func(data []byte) []byte { data[1] ^= 1; return data[:2] }))
	require.Equal(t, "ac", content(t, m, at("f")))
	require.ErrorIs(t, m.Edit(at("none"), nil), os.ErrNotExist)
}

func TestInjectorWatch(t *testing.T) {
	m := NewMem(1 << 20)
	inj := Inject(m)
	var seen []string
	var before []int
	inj.Watch(func(op Op, paths ...string) {
		seen = append(seen, string(op)+" "+strings.Join(paths, " "))
		before = append(before, len(tree(t, m.Crash(1, 0)))) // copies between operations
	})
	write(t, inj, at("a"), "x")
	require.NoError(t, inj.Rename(at("a"), at("b")))
	require.Equal(t, []string{
		"create " + at("a"), "write " + at("a"), "sync " + at("a"), "close " + at("a"), "rename " + at("a") + " " + at("b"),
	}, seen)
	require.Equal(t, []int{0, 1, 1, 1, 1}, before)
}
