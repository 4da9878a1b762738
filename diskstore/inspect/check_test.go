package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/internal/testrows"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// check checks the local tier and returns the findings.
func check(t testing.TB, r *Roots, opt CheckOptions) (TierCheck, []Finding) {
	t.Helper()
	var found []Finding
	opt.Found = func(f Finding) { found = append(found, f) }
	checks, err := r.Check(ctx, opt)
	require.NoError(t, err)
	require.NoError(t, checks[0].Err)
	return checks[0], found
}

func requireClean(t testing.TB, r *Roots, pages, tails int) {
	t.Helper()
	c, found := check(t, r, CheckOptions{})
	require.Empty(t, found)
	require.Equal(t, []int{pages, tails, pages + tails}, []int{c.Pages, c.Tails, c.Read})
}

func TestCheckOfWhatIsWhole(t *testing.T) {
	o, _ := stored(t)
	r := rootsOf(t, o)
	before := treeOf(t, o.Local.Root)
	requireClean(t, r, 3, 2)
	c, found := check(t, r, CheckOptions{Repair: true})
	require.Empty(t, found)
	require.Zero(t, c.Repaired+c.Damage+c.TempFiles+c.Quarantined)
	require.Equal(t, before, treeOf(t, o.Local.Root), "neither check changes a file")
	var bytes int64
	for _, path := range storetest.FilesIn(t, o.Local.Root, dir.PageExt) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		bytes += info.Size()
	}
	require.Equal(t, bytes, c.ReadBytes)
}

// treeOf lists all files below a root, with sizes, modes and times.
func treeOf(t testing.TB, root string) map[string]string {
	t.Helper()
	tree := make(map[string]string)
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		tree[path] = fmt.Sprint(info.Mode(), info.Size())
		if info.Mode().IsRegular() {
			tree[path] += fmt.Sprint(info.ModTime())
		}
		return nil
	}))
	return tree
}

// TestCheckAndRepair makes a problem of each kind at one page among others; a check finds the
// problem, a repair removes it, and a second check finds none.
func TestCheckAndRepair(t *testing.T) {
	for name, mess := range map[string]struct {
		make    func(t *testing.T, o diskstore.Options, path string)
		problem Problem
		lost    int  // pages that are missing after the repair
		stays   bool // the repair leaves the problem to a person
	}{
		"a bit of the header":  {func(t *testing.T, _ diskstore.Options, path string) { storetest.FlipAt(t, path, 60) }, ProblemDamaged, 1, false},
		"a bit of the payload": {func(t *testing.T, _ diskstore.Options, path string) { storetest.FlipAt(t, path, 4200) }, ProblemDamaged, 1, false},
		"a bit of the footer":  {func(t *testing.T, _ diskstore.Options, path string) { storetest.FlipAt(t, path, -1) }, ProblemDamaged, 1, false},
		"truncation": {func(t *testing.T, _ diskstore.Options, path string) {
			require.NoError(t, os.Truncate(path, 5000))
		}, ProblemDamaged, 1, false},
		"another page's name": {func(t *testing.T, o diskstore.Options, path string) {
			key := pagefile.Key{1, 2, 3}
			storetest.Place(t, path, storetest.Path(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Key: key}))
		}, ProblemMisplaced, 0, false},
		"another shard": {func(t *testing.T, o diskstore.Options, path string) {
			storetest.Place(t, path, filepath.Join(filepath.Dir(filepath.Dir(path)), otherShard(path), filepath.Base(path)))
		}, ProblemMisplaced, 0, false},
		"a directory": {func(t *testing.T, _ diskstore.Options, path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.MkdirAll(filepath.Join(path, "in", "it"), 0o700))
		}, ProblemNotRegular, 1, false},
		"a manifest that is none": {func(t *testing.T, o diskstore.Options, _ string) {
			path := storetest.Path(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassManifest})
			require.NoError(t, os.WriteFile(path, []byte("{}"), 0o600))
		}, ProblemManifest, 0, false},
		"no manifest": {func(t *testing.T, o diskstore.Options, _ string) {
			require.NoError(t, os.Remove(storetest.Path(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassManifest})))
		}, ProblemNoManifest, 0, true},
		"a dead process": {func(t *testing.T, o diskstore.Options, _ string) {
			dir := filepath.Join(o.Local.Root, storetest.VersionDir, storetest.TmpDir)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "0011-1.tmp"), []byte("x"), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "0011.lock"), nil, 0o600))
		}, ProblemStale, 0, false},
		"a process that left no lock": {func(t *testing.T, o diskstore.Options, _ string) {
			path := filepath.Join(o.Local.Root, storetest.VersionDir, storetest.TmpDir, "0011-1.tmp")
			require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
			past := time.Now().Add(-2 * dir.OrphanAge)
			require.NoError(t, os.Chtimes(path, past, past))
		}, ProblemStale, 0, false},
		"something else": {func(t *testing.T, o diskstore.Options, path string) {
			require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), "notes"), nil, 0o600))
		}, ProblemForeign, 0, true},
		"something else beside": {func(t *testing.T, o diskstore.Options, path string) {
			require.NoError(t, os.Mkdir(filepath.Join(o.Local.Root, storetest.VersionDir, "more"), 0o700))
		}, ProblemForeign, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			o, pages := stored(t)
			r := rootsOf(t, o)
			mess.make(t, o, storetest.Path(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Key: pages[0].Key()}))
			c, found := check(t, r, CheckOptions{})
			require.NotEmpty(t, found)
			for _, f := range found {
				require.Equal(t, mess.problem, f.Problem, "%+v", f)
				require.Empty(t, f.Done)
			}
			require.Equal(t, mess.problem.Damage(), c.Damage > 0)

			c, found = check(t, r, CheckOptions{Repair: true})
			require.NotEmpty(t, found)
			require.Equal(t, !mess.stays, c.Repaired > 0, "%+v", found)
			require.Zero(t, c.Damage)
			if mess.stays {
				return
			}
			c, found = check(t, r, CheckOptions{})
			if mess.problem == ProblemManifest {
				require.Equal(t, ProblemNoManifest, found[0].Problem)
			} else {
				require.Empty(t, found)
			}
			require.Equal(t, 3-mess.lost, c.Pages)
			require.Equal(t, 2, c.Tails)
		})
	}
}

// TestCheckKnowsItsOwnFiles: the list of removed pages is no foreign file, though it be damaged.
func TestCheckKnowsItsOwnFiles(t *testing.T) {
	o, _ := stored(t)
	require.NoError(t, os.WriteFile(filepath.Join(o.Local.Root, storetest.VersionDir, "gone"), []byte("garbage"), 0o600))
	for _, repair := range []bool{false, true} {
		_, found := check(t, rootsOf(t, o), CheckOptions{Repair: repair})
		require.Empty(t, found)
	}
}

func otherShard(path string) string {
	if filepath.Base(filepath.Dir(path)) == "00" {
		return "01"
	}
	return "00"
}

// TestCheckSample: a share of the pages is read, and not always the same pages.
func TestCheckSample(t *testing.T) {
	o := testOptions(t)
	s := open(t, o)
	for i := range 100 {
		putChain(t, s, testrows.Prompt(i, storetest.Tokens))
	}
	r := rootsOf(t, o)
	read := make(map[int]bool)
	for range 5 {
		c, found := check(t, r, CheckOptions{Sample: 0.3})
		require.Empty(t, found)
		require.Equal(t, 100, c.Pages)
		require.Positive(t, c.Read)
		require.Less(t, c.Read, 100)
		read[c.Read] = true
	}
	require.Greater(t, len(read), 1)
	for _, wrong := range []float64{-0.1, 1.1} {
		_, err := r.Check(ctx, CheckOptions{Sample: wrong})
		require.ErrorIs(t, err, ErrArguments)
	}
}

func TestCheckProgress(t *testing.T) {
	o, _ := stored(t, withRemote(t))
	last := make(map[string][2]int64)
	checks, err := rootsOf(t, o).Check(ctx, CheckOptions{Progress: func(tier string, done, total int64) {
		require.LessOrEqual(t, done, total)
		require.GreaterOrEqual(t, done, last[tier][0])
		last[tier] = [2]int64{done, total}
	}})
	require.NoError(t, err)
	require.Len(t, checks, 2)
	require.Equal(t, [2]int64{checks[0].ReadBytes, checks[0].ReadBytes}, last[tier.Local])
}

func TestCheckIsCancelled(t *testing.T) {
	o, _ := stored(t)
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err := rootsOf(t, o).Check(done, CheckOptions{})
	require.ErrorIs(t, err, context.Canceled)
}

// TestCheckOfAMissingRemote: a missing tier does not prevent the check of the other tier.
func TestCheckOfAMissingRemote(t *testing.T) {
	o, _ := stored(t, withRemote(t))
	r := rootsOf(t, o)
	require.NoError(t, os.RemoveAll(o.Remote.Root))
	checks, err := r.Check(ctx, CheckOptions{})
	require.NoError(t, err)
	require.NoError(t, checks[0].Err)
	require.Equal(t, 3, checks[0].Pages)
	require.ErrorIs(t, checks[1].Err, tier.ErrRootMissing)
}

// TestRepairLeavesTheLiving: a repair keeps the temporary files of a store that is writing.
func TestRepairLeavesTheLiving(t *testing.T) {
	o := testOptions(t)
	tr := dir.New(o.FS, o.Local.Root, dir.Options{Create: true})
	defer func() { require.NoError(t, tr.Close()) }()
	up, err := tr.Create(ctx, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassPage, Key: pagefile.Key{1}})
	require.NoError(t, err)
	defer up.Abort()
	require.NoError(t, up.Write(ctx, []byte("half")))
	c, found := check(t, rootsOf(t, o), CheckOptions{Repair: true})
	require.Empty(t, found)
	require.Equal(t, 1, c.Processes)
	require.Equal(t, 1, c.TempFiles)
	require.NoError(t, up.Write(ctx, []byte(" and half")))
	_, err = up.Commit(ctx, time.Now())
	require.NoError(t, err)
}

// TestRepairPutsBackWhatIsGood: a server may have stored a page again between the check's read
// of the damaged page and the move to quarantine.
func TestRepairPutsBackWhatIsGood(t *testing.T) {
	o, pages := stored(t)
	name := pagefile.Name{Fingerprint: o.Fingerprint, Key: pages[0].Key()}
	tr := dir.New(o.FS, o.Local.Root, dir.Options{})
	c := &checker{t: tr, tier: tier.Local, opt: CheckOptions{Repair: true}}
	before := treeOf(t, filepath.Join(o.Local.Root, storetest.VersionDir, o.Fingerprint.String()))
	done, err := c.aside(ctx, dir.Entry{Kind: dir.EntryPage, Path: tr.Path(name), Name: name}, "damaged")()
	require.NoError(t, err)
	require.Equal(t, "stored again meanwhile, and good", done)
	require.Equal(t, before, treeOf(t, filepath.Join(o.Local.Root, storetest.VersionDir, o.Fingerprint.String())))
	require.Empty(t, storetest.FilesIn(t, filepath.Join(o.Local.Root, storetest.VersionDir, storetest.QuarantineDir), dir.PageExt))
}

// TestRepairManifestFromTheOtherTier repairs in both directions.
func TestRepairManifestFromTheOtherTier(t *testing.T) {
	o, pages := stored(t, withRemote(t))
	r := rootsOf(t, o)
	local := storetest.Path(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassManifest})
	remote := storetest.Path(o.Remote.Root, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassManifest})
	storetest.Place(t, local, remote)
	storetest.Place(t, storetest.Path(o.Local.Root, storedAt(o, pages[0])), storetest.Path(o.Remote.Root, storedAt(o, pages[0])))
	want, err := os.ReadFile(local)
	require.NoError(t, err)
	for _, path := range []string{local, remote} {
		require.NoError(t, os.Remove(path))
		checks, err := r.Check(ctx, CheckOptions{Repair: true})
		require.NoError(t, err)
		require.Equal(t, 1, checks[0].Repaired+checks[1].Repaired)
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	}
}

// TestCheckSurvivesAnErrorAtEveryOperation: one failed operation is at most a finding, and a
// repair never loses a good page.
func TestCheckSurvivesAnErrorAtEveryOperation(t *testing.T) {
	errnos := []syscall.Errno{syscall.EIO, syscall.ESTALE, syscall.EACCES, syscall.EIO, syscall.ENOSPC}
	for _, repair := range []bool{false, true} {
		t.Run(fmt.Sprintf("repair %t", repair), func(t *testing.T) {
			inj := vfs.Inject(storetest.QuickFS)
			o, pages := stored(t, withFS(inj))
			damaged := storetest.Path(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Key: pages[1].Key()})
			good, err := os.ReadFile(damaged)
			require.NoError(t, err)
			for nth := 1; ; nth++ {
				require.NoError(t, os.WriteFile(damaged, good, 0o600))
				storetest.FlipAt(t, damaged, 4200)
				// A repair leaves a file in quarantine, which the next check would list.
				require.NoError(t, os.RemoveAll(filepath.Join(o.Local.Root, storetest.VersionDir, storetest.QuarantineDir)))
				inj.Reset()
				inj.Add(vfs.Rule{Nth: nth, Err: errnos[nth%len(errnos)]})
				ops := checkOnce(t, o, inj, repair)
				require.NoError(t, os.WriteFile(damaged, good, 0o600))
				requireClean(t, rootsOf(t, o), 3, 2)
				if nth > ops {
					return // every operation has failed once
				}
			}
		})
	}
}

// checkOnce checks under an injector's rules and returns the number of operations.
func checkOnce(t *testing.T, o diskstore.Options, inj *vfs.Injector, repair bool) int {
	t.Helper()
	defer inj.Reset()
	local := dir.New(o.FS, o.Local.Root, dir.Options{})
	defer local.Close()
	r := Roots{Local: local}
	checks, err := r.Check(ctx, CheckOptions{Repair: repair, Found: func(f Finding) {
		require.Contains(t, []Problem{ProblemDamaged, ProblemUnreadable, ProblemUnchecked}, f.Problem, "%+v", f)
	}})
	require.NoError(t, err)
	if checks[0].Err == nil {
		require.Positive(t, checks[0].Problems[ProblemDamaged]+checks[0].Problems[ProblemUnreadable]+checks[0].Problems[ProblemUnchecked])
	}
	return inj.Count()
}

// TestCheckWhileAServerWrites: pages that are stored, replaced or evicted during the check are
// not damage.
func TestCheckWhileAServerWrites(t *testing.T) {
	o := testOptions(t, func(o *diskstore.Options) { o.Local.BudgetBytes = 1 << 20 })
	s := open(t, o)
	r := rootsOf(t, o)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			tokens := testrows.Prompt(i%40, 2*storetest.Tokens+i%storetest.Tokens)
			parent := o.Fingerprint
			for at := 0; at < len(tokens); at += storetest.Tokens {
				p := storetest.Page(t, parent, at, tokens[at:min(at+storetest.Tokens, len(tokens))])
				if err := s.Put(ctx, p); err != nil && !errors.Is(err, tier.ErrNoSpace) {
					t.Errorf("put: %v", err)
				}
				parent = p.Key()
			}
		}
	}()
	for i := range 20 {
		c, found := check(t, r, CheckOptions{Repair: i%2 == 1})
		require.Empty(t, found)
		require.Zero(t, c.Damage)
	}
	close(done)
	wg.Wait()
}

// TestCheckOfSillyRenames: a file that an NFS client has renamed because it was removed while
// open is a temporary file; a repair removes it when its client is dead.
func TestCheckOfSillyRenames(t *testing.T) {
	o, pages := stored(t)
	tr := dir.New(o.FS, o.Local.Root, dir.Options{})
	of := filepath.Dir(tr.Path(pagefile.Name{Fingerprint: o.Fingerprint, Key: pages[0].Key()}))
	temp := filepath.Join(o.Local.Root, storetest.VersionDir, storetest.TmpDir)
	for i, at := range []string{of, temp} {
		path := filepath.Join(at, fmt.Sprintf(".nfs%024x", i))
		require.NoError(t, os.WriteFile(path, []byte("gone"), 0o600))
		c, found := check(t, rootsOf(t, o), CheckOptions{})
		require.Empty(t, found)
		require.Equal(t, 1, c.TempFiles)
		old := time.Now().Add(-2 * dir.OrphanAge)
		require.NoError(t, os.Chtimes(path, old, old))
		c, found = check(t, rootsOf(t, o), CheckOptions{Repair: true})
		require.Len(t, found, 1)
		require.Equal(t, ProblemStale, found[0].Problem)
		require.Equal(t, 1, c.Repaired)
		require.NoFileExists(t, path)
	}
}
