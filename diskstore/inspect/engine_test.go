package inspect

import (
	"bytes"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestCheckOfAnEngine: what is damaged there is found, and repair moves it away.
func TestCheckOfAnEngine(t *testing.T) {
	local := dir.New(vfs.OS, filepath.Join(t.TempDir(), "root"), dir.Options{Create: true})
	require.NoError(t, local.Claim(t.Context()))
	defer func() { require.NoError(t, local.Close()) }()
	engine := tiertest.NewMap()
	for n := range byte(3) {
		tiertest.Upload(t, engine, tiertest.Page(n), bytes.Repeat([]byte("no page"), 1000), time.Now())
	}
	tiertest.Upload(t, engine, tiertest.Tail(1), []byte("no tail"), time.Now())
	tiertest.Upload(t, engine, pagefile.Name{Fingerprint: tiertest.Fingerprint, Class: pagefile.ClassManifest}, []byte("no manifest"), time.Now())
	roots := Roots{Local: local, Engine: engine, Where: "s3://bucket"}
	for _, repair := range []bool{false, true} {
		var found []Finding
		checks, err := roots.Check(t.Context(), CheckOptions{Repair: repair, Found: func(f Finding) { found = append(found, f) }})
		require.NoError(t, err)
		require.Len(t, checks, 2)
		got := checks[1]
		require.NoError(t, got.Err)
		require.Equal(t, "s3://bucket", got.Root)
		require.Equal(t, []int{3, 1, 4}, []int{got.Pages, got.Tails, got.Read})
		require.Equal(t, map[Problem]int{ProblemDamaged: 4, ProblemManifest: 1}, got.Problems)
		require.Len(t, found, 5)
		for _, f := range found {
			require.Equal(t, tier.Remote, f.Tier)
			require.Contains(t, f.Path, "s3://bucket: ")
		}
		if repair {
			require.Equal(t, 4, got.Repaired)
			require.Len(t, engine.Aside, 4)
		}
	}
}
