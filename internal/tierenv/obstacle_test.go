package tierenv

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

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
