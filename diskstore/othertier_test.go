package diskstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

func TestContractOfATierOfAnotherModule(t *testing.T) {
	tiertest.Contract(t, func(*testing.T) tier.Tier {
		return tiertest.NewMap()
	})
}

// TestTierOfAnotherModule: pages move down to a tier that is not a directory, and come back
// from there in another process.
func TestTierOfAnotherModule(t *testing.T) {
	ctx := t.Context()
	below := tiertest.NewMap()
	layout, err := pagefile.NewLayout([]pagefile.Section{{RowBytes: 4096}}, 4)
	require.NoError(t, err)
	fingerprint := pagefile.Key{1}
	open := func() *diskstore.Store {
		s, err := diskstore.Open(ctx, diskstore.Options{
			Fingerprint: fingerprint, PageTokens: 4, RemoteTier: below,
			Local: diskstore.TierConfig{Root: filepath.Join(t.TempDir(), "root"), BudgetBytes: 8 * 28 << 10},
		})
		require.NoError(t, err)
		return s
	}
	rowsOf := func(i int32) []byte {
		return bytes.Repeat([]byte(fmt.Sprintf("%04d", i)), layout.Size()/4)
	}
	first := open()
	const pages = 40
	for i := range int32(pages) {
		page := &pagefile.Page{Parent: fingerprint, Tokens: []int32{i, 1, 2, 3}, Layout: layout, Payload: rowsOf(i)}
		require.NoError(t, first.Put(ctx, page))
	}
	require.NoError(t, first.Flush(ctx))
	require.Positive(t, first.Stats().Demoted)
	require.NoError(t, first.Close())
	require.True(t, below.Closed)

	below.Closed = false // another process has opened the tier
	second := open()
	defer func() { require.NoError(t, second.Close()) }()
	found := 0
	for i := range int32(pages) {
		tokens := []int32{i, 1, 2, 3}
		for _, ref := range second.Find(ctx, diskstore.Prompt{Tokens: tokens}).Exact {
			buf := make([]byte, layout.Size())
			require.NoError(t, second.Read(ctx, ref, tokens, layout, diskstore.Into{Rows: buf}))
			require.Equal(t, rowsOf(i), buf)
			require.Equal(t, tier.Remote, ref.Tier)
			found++
		}
	}
	require.EqualValues(t, first.Stats().Demoted, found)
	require.NoError(t, second.Flush(ctx))
}

// brokenTier cannot be listed.
type brokenTier struct{ *tiertest.Map }

func (brokenTier) Survey(context.Context) ([]pagefile.Key, []tier.Shard, error) {
	return nil, nil, errors.New("broken")
}

// TestOpenClosesATierOfAnotherModule: a store closes its tier, also a store that was not
// opened. An error names the type of a tier without a root.
func TestOpenClosesATierOfAnotherModule(t *testing.T) {
	ctx := t.Context()
	good := diskstore.Options{Fingerprint: pagefile.Key{1}, Local: diskstore.TierConfig{Root: filepath.Join(t.TempDir(), "root")}}
	noRoot := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(noRoot, nil, 0o600))
	for name, edit := range map[string]func(*diskstore.Options){
		"two remote tiers": func(o *diskstore.Options) { o.Remote.Root = t.TempDir() },
		"page tokens":      func(o *diskstore.Options) { o.PageTokens = -1 },
		"local root":       func(o *diskstore.Options) { o.Local.Root = noRoot },
	} {
		below, o := tiertest.NewMap(), good
		o.RemoteTier = below
		edit(&o)
		_, err := diskstore.Open(ctx, o)
		require.Error(t, err, name)
		require.Equal(t, o.Local.Root != noRoot, errors.Is(err, diskstore.ErrOptions), name)
		require.True(t, below.Closed, name)
	}
	unused := tiertest.NewMap()
	_, err := diskstore.OpenRoot(ctx, diskstore.RootOptions{Local: diskstore.TierConfig{Root: t.TempDir(), BudgetBytes: -1}, RemoteTier: unused})
	require.ErrorIs(t, err, diskstore.ErrOptions)
	require.True(t, unused.Closed)

	below, o := tiertest.NewMap(), good
	o.RemoteTier = brokenTier{below}
	s, err := diskstore.Open(ctx, o)
	require.NoError(t, err)
	usage, err := s.Survey(ctx)
	require.NoError(t, err)
	require.ErrorContains(t, usage.RemoteErr, "scan diskstore_test.brokenTier: ")
	require.NoError(t, s.Close())
	require.True(t, below.Closed)
}

// TestRootOnATierOfAnotherModule: tools count and collect the tier's pages, and leave alone the
// parts for which they need a directory.
func TestRootOnATierOfAnotherModule(t *testing.T) {
	ctx := t.Context()
	below := tiertest.NewMap()
	r, err := diskstore.OpenRoot(ctx, diskstore.RootOptions{Local: diskstore.TierConfig{Root: t.TempDir()}, RemoteTier: below, Timeout: time.Minute})
	require.NoError(t, err)
	usage, err := r.Usage(ctx)
	require.NoError(t, err)
	require.NoError(t, usage.RemoteErr)
	all := func(diskstore.FingerprintUsage) bool { return true }
	report, err := r.GC(ctx, diskstore.GCOptions{Fingerprints: all})
	require.NoError(t, err)
	require.NoError(t, report.RemoteErr)
	local, remote := r.Dirs()
	require.NotNil(t, local)
	require.Nil(t, remote)
	drops, err := r.DropQuarantined(ctx, func(pagefile.Key) bool { return true }, false)
	require.ErrorContains(t, err, "quarantine in *tiertest.Map: ")
	require.Len(t, drops, 1)
	require.Equal(t, tier.Local, drops[0].Tier)
	require.NoError(t, r.Close())
	require.True(t, below.Closed)
}
