package tierenv

import (
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

func TestSupersedes(t *testing.T) {
	mine := map[string]string{KeyWeights: "w", KeyEngine: "new", KeyNumerics: "n", KeySchema: "1", KeyPageTokens: "256", KeyCacheType: "f16"}
	with := func(changes ...string) map[string]string {
		other := maps.Clone(mine)
		for i := 0; i < len(changes); i += 2 {
			other[changes[i]] = changes[i+1]
		}
		return other
	}
	require.False(t, supersedes(mine, with()))
	require.True(t, supersedes(mine, with(KeyEngine, "old")))
	require.True(t, supersedes(mine, with(KeyEngine, "old", KeyCacheType, "q8_0")))
	require.True(t, supersedes(mine, with(KeySchema, "0")))
	require.False(t, supersedes(mine, with(KeyCacheType, "q8_0")), "the same engine with other settings")
	require.False(t, supersedes(mine, with(KeyEngine, "old", KeyWeights, "other")))
	require.False(t, supersedes(mine, with(KeyEngine, "old", KeyNumerics, "another machine")))
	require.False(t, supersedes(mine, with(KeyEngine, "old", KeyNamespace, "another team")))
	require.False(t, supersedes(mine, map[string]string{}))
}

// TestReclaim removes pages of another version of the engine a day after their last use, and
// from a remote tier after 30 days.
func TestReclaim(t *testing.T) {
	for where, after := range map[string]time.Duration{"local": reclaimAfter, "remote": reclaimRemoteAfter} {
		t.Run(where, func(t *testing.T) { testReclaim(t, where == "remote", after) })
	}
}

func testReclaim(t *testing.T, remote bool, after time.Duration) {
	root := filepath.Join(t.TempDir(), "pages")
	require.NoError(t, os.Mkdir(root, 0o700))
	open := func(key pagefile.Key, engine string) (*diskstore.Store, map[string]string) {
		identity := map[string]string{KeyWeights: "w", KeyEngine: engine}
		options := diskstore.Options{
			Fingerprint: key, Identity: identity, PageTokens: 16, Local: diskstore.TierConfig{Root: root, BudgetBytes: 1 << 30},
		}
		if remote && engine == "new" { // the pages of the old one lie in the remote tier
			options.Local.Root, options.Remote = filepath.Join(t.TempDir(), "local"), options.Local
		}
		s, err := diskstore.Open(t.Context(), options)
		require.NoError(t, err)
		return s, identity
	}
	layout, err := pagefile.NewLayout([]pagefile.Section{{Kind: pagefile.KindK, RowBytes: 32}}, 16)
	require.NoError(t, err)
	tokens := make([]int32, 16)
	old, _ := open(pagefile.Key{1}, "old")
	require.NoError(t, old.Put(t.Context(), &pagefile.Page{Parent: pagefile.Key{1}, Tokens: tokens, Layout: layout, Payload: make([]byte, layout.Size())}))
	require.NoError(t, old.Close())

	for _, age := range []time.Duration{after - time.Hour, after + time.Hour} {
		require.NoError(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != dir.PageExt {
				return err
			}
			used := time.Now().Add(-age)
			return os.Chtimes(path, used, used)
		}))
		log, lines := tierenvtest.Logger()
		s, identity := open(pagefile.Key{2}, "new")
		usage, err := s.Survey(t.Context())
		require.NoError(t, err)
		Reclaim(t.Context(), s, usage, identity, log)
		require.Equal(t, age < after, holdsPages(root))
		require.Contains(t, lines.String(), map[bool]string{true: "found pages", false: "reclaimed pages"}[age < after])
		require.NoError(t, s.Close())
		lines.Reset()
		Reclaim(t.Context(), s, usage, identity, log)
		require.Empty(t, lines.String(), "closed")
	}
}

// TestObstaclesOfAStore plays each failure of a local directory on a store, and requires one line
// with the cause after the first page that was not stored, and one when pages are stored again.
func TestObstaclesOfAStore(t *testing.T) {
	for cause, errno := range map[telemetry.Obstacle]syscall.Errno{
		telemetry.ObstacleFull:     syscall.EDQUOT,
		telemetry.ObstacleReadOnly: syscall.EROFS,
		telemetry.ObstacleDenied:   syscall.EACCES,
		telemetry.ObstacleName:     syscall.ENAMETOOLONG,
		telemetry.ObstacleOther:    syscall.EIO,
	} {
		t.Run(string(cause), func(t *testing.T) {
			inj := vfs.Inject(vfs.OS)
			s, lines := storeWith(t, func(o *diskstore.Options) { o.FS = inj })
			require.NoError(t, s.Put(t.Context(), pageOf(t, 0)))
			require.Empty(t, lines.String())
			inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpCreate}, Path: regexp.MustCompile(`-\d+\.tmp$`), Err: errno})
			for i := range int32(3) {
				require.Error(t, s.Put(t.Context(), pageOf(t, 1+i)))
			}
			require.Equal(t, 1, strings.Count(lines.String(), "\n"), lines.String())
			require.Contains(t, lines.String(), "level=WARN")
			require.Contains(t, lines.String(), "cause="+string(cause)+" ")
			inj.Reset()
			require.NoError(t, s.Put(t.Context(), pageOf(t, 5)))
			require.Equal(t, 1, strings.Count(lines.String(), "conversations are stored again"))
		})
	}
	for cause, limit := range map[telemetry.Obstacle]func(*diskstore.Options){
		telemetry.ObstacleBudget:   func(o *diskstore.Options) { o.Local.BudgetBytes = 4096 },
		telemetry.ObstacleWriteCap: func(o *diskstore.Options) { o.Local.BudgetBytes, o.WritePerDay = 0, 1 },
	} {
		t.Run(string(cause), func(t *testing.T) {
			s, lines := storeWith(t, limit)
			_ = s.Put(t.Context(), pageOf(t, 0)) // a day's first page is always written
			for i := range int32(3) {
				require.Error(t, s.Put(t.Context(), pageOf(t, 1+i)))
			}
			require.Equal(t, 1, strings.Count(lines.String(), "\n"), lines.String())
			require.Contains(t, lines.String(), "cause="+string(cause)+" ")
			require.Regexp(t, `reason="[^"]*(in a budget of 4096, raise it|on a day of at most 1)`, lines.String())
		})
	}
}

// storeWith opens a store that tells a Watch, whose log it returns.
func storeWith(t *testing.T, change func(*diskstore.Options)) (*diskstore.Store, *strings.Builder) {
	t.Helper()
	lines := new(strings.Builder)
	o := diskstore.Options{
		Fingerprint: pagefile.Key{1}, PageTokens: 16,
		Trouble: Trouble(unstored.New(slog.New(slog.NewTextHandler(lines, nil)), nil)),
		Local:   diskstore.TierConfig{Root: filepath.Join(t.TempDir(), "pages"), BudgetBytes: 1 << 30},
	}
	change(&o)
	s, err := diskstore.Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, lines
}

func pageOf(t *testing.T, token int32) *pagefile.Page {
	t.Helper()
	layout, err := pagefile.NewLayout([]pagefile.Section{{Kind: pagefile.KindK, RowBytes: 512}}, 16)
	require.NoError(t, err)
	tokens := make([]int32, 16)
	tokens[0] = token
	return &pagefile.Page{Parent: pagefile.Key{1}, Tokens: tokens, Layout: layout, Payload: make([]byte, layout.Size())}
}

func TestObstacleOf(t *testing.T) {
	for want, errs := range map[telemetry.Obstacle][]error{
		telemetry.ObstacleRoot:   {tier.ErrRootSymlink, tier.ErrRootNotDir, tier.ErrRootOwner, tier.ErrRootMode, tier.ErrRootMissing, syscall.ENOTDIR},
		telemetry.ObstacleInodes: {diskstore.ErrNoInodes},
		telemetry.ObstacleFull:   {diskstore.ErrCrowded, syscall.ENOSPC, fmt.Errorf("%w (%w)", syscall.ENOSPC, tier.ErrNoSpace)},
		telemetry.ObstacleDenied: {fs.ErrPermission, &os.PathError{Op: "mkdir", Path: "/x", Err: syscall.EACCES}},
		telemetry.ObstacleHung:   {steady.ErrHung},
		telemetry.ObstacleBudget: {tier.ErrNoSpace},
		telemetry.ObstacleOther:  {syscall.EIO},
	} {
		for _, err := range errs {
			require.Equal(t, want, ObstacleOf(fmt.Errorf("put page: %w", err)), err)
		}
	}
}

func TestAllocation(t *testing.T) {
	require.Equal(t, []any{"local", "/a", "local_budget", "20 GB", "local_tokens", int64(20_000_000)},
		Config{Local: "/a", LocalBytes: 20e9}.Allocation(1000))
	require.Equal(t, []any{"local", "/a", "local_budget", "all but 5% of the disk"},
		Config{Local: "/a"}.Allocation(1000), "a part of the disk is no number of tokens")
	require.Equal(t, []any{"local", "/a", "local_budget", "2 GB", "ram_budget", "1 GB", "remote", "/b", "remote_budget", "500 MB"},
		Config{Local: "/a", LocalBytes: 2e9, RAMBytes: 1e9, Remote: "/b", RemoteBytes: 5e8}.Allocation(0), "the cache has no memory yet")
}

// TestAnObjectStoreMayTakeLonger: its requests go through more machines than those of other tiers.
func TestAnObjectStoreMayTakeLonger(t *testing.T) {
	require.Greater(t, Config{Address: "s3://bucket"}.StoreOptions().RemoteTimeout, diskstore.DefaultRemoteTimeout)
	for _, c := range []Config{{}, {Remote: "/mnt"}, {Address: "valkey://host"}} {
		require.Zero(t, c.StoreOptions().RemoteTimeout)
	}
}
