package diskstore

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// openRoot opens the roots of o as a tool does.
func openRoot(t *testing.T, o Options) *Root {
	t.Helper()
	r, err := OpenRoot(ctx, RootOptions{Local: o.Local, Remote: o.Remote, FS: o.FS})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// repair checks all pages of the roots, and removes what it finds.
func repair(r *Root) (err error) {
	var roots inspect.Roots
	roots.Local, roots.Remote = r.Dirs()
	_, err = roots.Check(ctx, inspect.CheckOptions{Repair: true})
	return err
}

// gcWith runs GC, which ends without an error.
func gcWith(t *testing.T, r *Root, opt GCOptions) GCReport {
	t.Helper()
	report, err := r.GC(ctx, opt)
	require.NoError(t, err)
	return report
}

// someRoot makes two roots in which three fingerprints have a page and a tail each, and the
// first fingerprint a remote page.
func someRoot(t *testing.T) Options {
	o := testOptions(t, withRemote(t))
	for n := range byte(3) {
		o := o
		o.Fingerprint, o.Identity = testFingerprint(n+1), map[string]string{"model": string('a' + rune(n))}
		s := open(t, o)
		putChain(t, s, prompt(int(n), testTokens+3))
		if n == 0 {
			p := putChain(t, s, prompt(9, testTokens))[0]
			evictPage(t, s, mustStat(t, s.disk, s.pages.Page(p.Key())))
		}
		require.NoError(t, s.Flush(ctx))
		require.NoError(t, s.Close())
	}
	return o
}

// A tool without a time limit waits for a slow remote tier as long as for a local one.
func TestOpenRootWithoutALimit(t *testing.T) {
	s, o := openNew(t, withRemote(t))
	require.NoError(t, s.Close())
	for timeout, want := range map[time.Duration]time.Duration{0: noLimit, time.Minute: 2 * time.Minute} {
		r, err := OpenRoot(ctx, RootOptions{Local: o.Local, Remote: o.Remote, FS: o.FS, Timeout: timeout})
		require.NoError(t, err)
		require.Equal(t, want, r.s.opt.RemoteTimeout)
		require.Equal(t, want, r.s.opt.ReadTimeout)
		require.NoError(t, r.Close())
	}
}

func TestOpenRootRefusesAndMakesNothing(t *testing.T) {
	o := testOptions(t)
	_, err := OpenRoot(ctx, RootOptions{Local: o.Local})
	require.ErrorIs(t, err, tier.ErrRootMissing)
	require.NoDirExists(t, o.Local.Root)
	_, err = OpenRoot(ctx, RootOptions{})
	require.ErrorIs(t, err, ErrOptions)
	_, err = OpenRoot(ctx, RootOptions{Local: o.Local, Eviction: EvictLRU + 1})
	require.ErrorIs(t, err, ErrOptions)

	require.NoError(t, os.Mkdir(o.Local.Root, 0o700))
	r := openRoot(t, o)
	use, err := r.Usage(ctx)
	require.NoError(t, err)
	require.Empty(t, use.Local.Fingerprints)
	report := gcWith(t, r, GCOptions{DryRun: true})
	require.Equal(t, GCReport{}, report)
	require.Empty(t, filesIn(t, o.Local.Root, ".json"))
	require.NoError(t, os.Chmod(o.Local.Root, 0o777))
	_, err = OpenRoot(ctx, RootOptions{Local: o.Local})
	require.ErrorIs(t, err, tier.ErrRootMode)

	o = testOptions(t)
	require.NoError(t, os.Mkdir(o.Local.Root, 0o700))
	o.Remote.Root = filepath.Join(t.TempDir(), "gone")
	use, err = openRoot(t, o).Usage(ctx)
	require.NoError(t, err)
	require.ErrorIs(t, use.RemoteErr, tier.ErrRootMissing)
}

func TestRootUsage(t *testing.T) {
	o := someRoot(t)
	alive := open(t, o)
	putChain(t, alive, prompt(0, testTokens+3))
	moved, err := alive.disk.Quarantine(ctx, tier.Info{Name: alive.Find(ctx, Prompt{Tokens: prompt(0, testTokens+3)}).Exact[1].name(alive.pages)}, "test")
	require.NoError(t, err)
	require.True(t, moved)
	use, err := openRoot(t, o).Usage(ctx)
	require.NoError(t, err)
	require.NoError(t, use.RemoteErr)
	require.Len(t, use.Local.Fingerprints, 3)
	require.Equal(t, map[string]string{"model": "b"}, use.Local.Fingerprints[1].Identity)
	require.Equal(t, 1, use.Local.Fingerprints[1].Tails)
	require.WithinDuration(t, time.Now(), use.Local.Fingerprints[1].LastUsed, time.Minute)
	require.Equal(t, 3, use.Local.Pages)
	require.Equal(t, 2, use.Local.Tails)
	require.Equal(t, 1, use.Local.QuarantineFiles)
	require.Equal(t, occupied(t, o.Local.Root), use.Local.Bytes+use.Local.TempBytes+use.Local.QuarantineBytes)
	require.GreaterOrEqual(t, use.Local.Booked, occupied(t, o.Local.Root))
	require.Equal(t, 1, use.Local.Processes)
	require.Equal(t, 1, use.Remote.Pages)
	require.Len(t, use.Remote.Fingerprints, 1)
	require.Positive(t, use.Local.Space.Total)
	require.Len(t, use.Local.Written, 1)
	require.Equal(t, time.Now().UTC().Format(time.DateOnly), use.Local.Written[0].Day)
}

// gc runs GC once dry and once not, and checks that both report the same files, and that the
// second run has removed them.
func gc(t *testing.T, o Options, opt GCOptions) GCReport {
	t.Helper()
	r := openRoot(t, o)
	run := func(dry bool) (GCReport, map[string]bool) {
		opt.DryRun = dry
		files := make(map[string]bool)
		opt.Removed = func(f GCFile) {
			root := o.Local.Root
			if f.Tier == tier.Remote {
				root = o.Remote.Root
			}
			files[filePath(root, f.Name)] = true
		}
		report := gcWith(t, r, opt)
		require.NoError(t, report.RemoteErr)
		return report, files
	}
	before := len(filesIn(t, o.Local.Root, dir.PageExt)) + len(filesIn(t, o.Remote.Root, dir.PageExt))
	rehearsed, would := run(true)
	require.Equal(t, before, len(filesIn(t, o.Local.Root, dir.PageExt))+len(filesIn(t, o.Remote.Root, dir.PageExt)))
	report, did := run(false)
	require.Equal(t, rehearsed, report)
	require.Equal(t, would, did)
	for path := range did {
		require.NoFileExists(t, path)
	}
	require.Equal(t, before-len(did)+report.Local.Demoted, len(filesIn(t, o.Local.Root, dir.PageExt))+len(filesIn(t, o.Remote.Root, dir.PageExt)))
	return report
}

func TestGCByFingerprint(t *testing.T) {
	o := someRoot(t)
	report := gc(t, o, GCOptions{Fingerprints: func(use FingerprintUsage) bool { return use.Identity["model"] == "a" }})
	require.Equal(t, 1, report.Local.Pages)
	require.Equal(t, 1, report.Local.Tails)
	require.Equal(t, 1, report.Local.Fingerprints)
	require.Equal(t, 1, report.Remote.Pages)
	require.Positive(t, report.Local.Bytes)
	require.NoDirExists(t, filepath.Join(o.Local.Root, storetest.VersionDir, testFingerprint(1).String()))
	require.NoDirExists(t, filepath.Join(o.Remote.Root, storetest.VersionDir, testFingerprint(1).String()))
	require.Equal(t, occupied(t, o.Local.Root), recorded(t, o.Local.Root)-claimOf(t, o))
}

// TestGCUnderALivingServer: a removed page is a miss in the server, and is stored again.
func TestGCUnderALivingServer(t *testing.T) {
	o := someRoot(t)
	s := open(t, o)
	tokens := prompt(0, testTokens+3)
	refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
	gc(t, o, GCOptions{Fingerprints: func(FingerprintUsage) bool { return true }})
	require.ErrorIs(t, readError(t, s, refs[0], tokens[:testTokens]), tier.ErrNotFound)
	putChain(t, s, tokens)
	readChain(t, s, tokens, len(tokens))
}

func TestGCByAge(t *testing.T) {
	o := someRoot(t)
	old := filesIn(t, filepath.Join(o.Local.Root, storetest.VersionDir, testFingerprint(2).String()), dir.PageExt)
	require.Len(t, old, 2)
	past := time.Now().Add(-48 * time.Hour)
	for _, path := range old {
		require.NoError(t, os.Chtimes(path, past, past))
	}
	require.Equal(t, GCReport{}, gc(t, o, GCOptions{OlderThan: 72 * time.Hour}))
	report := gc(t, o, GCOptions{OlderThan: 24 * time.Hour, Fingerprints: func(use FingerprintUsage) bool {
		return use.Fingerprint != testFingerprint(2)
	}})
	require.Equal(t, GCReport{}, report)
	report = gc(t, o, GCOptions{OlderThan: 24 * time.Hour})
	require.Equal(t, GCTier{Pages: 1, Tails: 1, Bytes: report.Local.Bytes, Fingerprints: 1}, report.Local)
	require.Equal(t, GCTier{}, report.Remote)
}

// TestGCToBudget demotes from the local tier and deletes from the remote one.
func TestGCToBudget(t *testing.T) {
	o := someRoot(t)
	require.Equal(t, GCReport{}, gc(t, o, GCOptions{}))
	o.Local.BudgetBytes = occupied(t, o.Local.Root) / 2
	report := gc(t, o, GCOptions{})
	require.Equal(t, report.Local.Pages+report.Local.Tails, report.Local.Demoted)
	require.NotZero(t, report.Local.Demoted)
	require.LessOrEqual(t, occupied(t, o.Local.Root), o.Local.BudgetBytes)

	o.Remote.BudgetBytes = occupied(t, o.Remote.Root) - 1
	report = gc(t, o, GCOptions{})
	require.Zero(t, report.Local)
	require.NotZero(t, report.Remote.Pages+report.Remote.Tails)
	require.LessOrEqual(t, occupied(t, o.Remote.Root), o.Remote.BudgetBytes)
}

// TestBudgetsWaitForTheRemoteTier collects while the share is not mounted, as tools do: pages
// that should move to the share are neither deleted nor reported as moved.
func TestBudgetsWaitForTheRemoteTier(t *testing.T) {
	o := someRoot(t)
	o.Local.BudgetBytes = 1
	require.NoError(t, os.RemoveAll(o.Remote.Root))
	for _, dry := range []bool{true, false} {
		report := gcWith(t, openRoot(t, o), GCOptions{DryRun: dry})
		require.ErrorIs(t, report.RemoteErr, tier.ErrRootMissing)
		require.Zero(t, report.Local)
	}
	require.Len(t, filesIn(t, o.Local.Root, dir.PageExt), 6)
	report := gcWith(t, openRoot(t, o), GCOptions{OlderThan: time.Nanosecond})
	require.ErrorIs(t, report.RemoteErr, tier.ErrRootMissing)
	require.Equal(t, 3, report.Local.Pages, "selected pages are deleted nevertheless")
}

// TestReclaimKeepsPagesUsedSince: between the count of a tier and Reclaim, a server of another
// version uses pages that nobody had used for a month, and stores one. These pages stay.
func TestReclaimKeepsPagesUsedSince(t *testing.T) {
	const month = 30 * 24 * time.Hour
	o := testOptions(t, withRemote(t))
	used, unused := prompt(1, 2*testTokens), prompt(2, 2*testTokens)
	other := open(t, o)
	levels := []*level{other.local, other.remote}
	for _, tokens := range [][]int32{used, unused} {
		putChain(t, other, tokens)
		for _, name := range namesOf(other, tokens) {
			require.NoError(t, other.demote(ctx, mustStat(t, other.disk, name)))
		}
		for _, lv := range levels {
			setUsed(t, other, lv, tokens, time.Now().Add(-month-time.Hour))
		}
	}
	mine := o
	mine.Fingerprint = testFingerprint(2)
	s := open(t, mine)
	found, err := s.Survey(ctx)
	require.NoError(t, err)

	for _, lv := range levels {
		setUsed(t, other, lv, used, time.Now())
	}
	fresh := prompt(3, testTokens)
	putChain(t, other, fresh)
	got, err := s.Reclaim(ctx, found, func(use FingerprintUsage) bool { return use.Unused > month })
	require.NoError(t, err)
	require.Equal(t, 4, got.Pages, "both pages of one conversation, in both tiers")
	require.Zero(t, got.Fingerprints, "pages of it are left")
	for _, lv := range levels {
		for _, name := range namesOf(other, used) {
			_, err := tier.Stat(ctx, lv.tier, name)
			require.NoError(t, err, lv.name)
		}
		for _, name := range namesOf(other, unused) {
			_, err := tier.Stat(ctx, lv.tier, name)
			require.Error(t, err, lv.name)
		}
	}
	readChain(t, other, fresh, testTokens)
}

// TestGCKeepsPagesUsedSince: a page is used after its directory was listed.
func TestGCKeepsPagesUsedSince(t *testing.T) {
	s, o := openNew(t)
	pair := neighbours(t, o.Fingerprint)
	past := time.Now().Add(-48 * time.Hour)
	for _, p := range pair {
		require.NoError(t, s.Put(ctx, p))
		require.NoError(t, s.disk.Touch(ctx, s.pages.Page(p.Key()), past))
	}
	report, err := openRoot(t, o).GC(ctx, GCOptions{OlderThan: 24 * time.Hour, Removed: func(gone GCFile) {
		for _, p := range pair {
			if name := s.pages.Page(p.Key()); name != gone.Name {
				require.NoError(t, s.disk.Touch(ctx, name, time.Now()))
			}
		}
	}})
	require.NoError(t, err)
	require.Equal(t, 1, report.Local.Pages)
	require.Len(t, listAll(t, s.local), 1)
}
