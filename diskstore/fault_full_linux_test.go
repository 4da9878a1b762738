package diskstore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/mounts"
)

// largePage makes a page of 1 MiB, much larger than a directory.
func largePage(t *testing.T, tokens []int32) *pagefile.Page {
	return withSections(t, testFingerprint(1), 0, tokens, []pagefile.Section{{Kind: pagefile.KindK, RowBytes: 64 << 10}, {Kind: pagefile.KindV, RowBytes: 64 << 10}})
}

// readLarge reads a page back.
func readLarge(t *testing.T, s *Store, p *pagefile.Page) {
	refs := s.Find(ctx, Prompt{Tokens: p.Tokens}).Exact
	require.Len(t, refs, 1)
	require.Equal(t, p.Payload, rowsOf(t, s, refs[0], p))
}

// TestFullFilesystem fills real filesystems: the store makes room, gives up without room, and
// works again once there is room.
func TestFullFilesystem(t *testing.T) {
	for fstype, size := range map[string]int64{"ext4": mounts.Ext4Bytes, "xfs": mounts.XFSBytes} {
		t.Run(fstype, func(t *testing.T) {
			image := mounts.NewImage(t, fstype, size)
			o := testOptions(t, withFS(vfs.OS), func(o *Options) {
				o.Local = TierConfig{Root: filepath.Join(image.Dir, "kv"), BudgetBytes: size}
			})
			s := start(t, o)
			require.NoError(t, s.Flush(ctx))

			// The disk is full long before the budget: room is made for each page.
			empty := image.Fill(10 << 20)
			for seed := range 30 {
				p := largePage(t, prompt(seed, testTokens))
				require.NoError(t, s.Put(ctx, p))
				readLarge(t, s, p)
			}
			require.NoError(t, s.Flush(ctx))
			require.NotZero(t, s.Stats().Evicted)
			requireExact(t, s)

			// There is no room and no page to evict.
			for s.Stats().Local.Pages > 0 {
				require.NoError(t, s.local.room.Collect(ctx, room.Demand{Disk: size}))
			}
			fill := image.Fill(0)
			big := largePage(t, prompt(100, testTokens))
			require.ErrorIs(t, s.Put(ctx, big), tier.ErrNoSpace)
			require.NoError(t, s.Flush(ctx))
			require.Empty(t, filesIn(t, o.Local.Root, dir.TmpExt))
			require.Empty(t, s.Find(ctx, Prompt{Tokens: prompt(100, testTokens)}).Exact)
			require.True(t, s.Stats().Local.Down)

			// A store on a full disk can be opened, without a manifest if necessary.
			require.NoError(t, s.Close())
			manifest := filePath(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassManifest})
			require.NoError(t, os.Remove(manifest))
			topUp := image.Fill(0)
			s = start(t, o)
			require.Empty(t, s.Find(ctx, Prompt{Tokens: prompt(1, testTokens)}).Exact)
			_ = s.Put(ctx, big) // may find a few blocks

			topUp()
			fill()
			empty()
			require.NoError(t, s.Put(ctx, big))
			readLarge(t, s, big)
			require.NoError(t, s.local.room.Collect(ctx, room.Demand{}))
			requireExact(t, s)
			require.NoError(t, s.Flush(ctx))
			require.NoError(t, s.Close())
			s = start(t, o)
			require.FileExists(t, manifest)
			require.NoError(t, s.Flush(ctx)) // a count writes the ledger
			require.Empty(t, filesIn(t, o.Local.Root, dir.TmpExt))
			require.NoError(t, s.Close())
		})
	}
}

// TestFullRemoteFilesystem fills the filesystem of the remote tier, in which the store makes
// room as well.
func TestFullRemoteFilesystem(t *testing.T) {
	image := mounts.NewImage(t, "ext4", mounts.Ext4Bytes)
	page := physicalPage(t)
	o := testOptions(t, withFS(vfs.OS), withRemote(t), func(o *Options) {
		o.Local.BudgetBytes = 3 * page
		o.Remote = TierConfig{Root: filepath.Join(image.Dir, "kv"), BudgetBytes: mounts.Ext4Bytes}
	})
	require.NoError(t, os.Mkdir(o.Remote.Root, 0o700))
	image.Fill(12 * page)
	s := start(t, o)
	for seed := range 40 {
		require.NoError(t, s.Put(ctx, pageOf(t, s.opt.Fingerprint, 0, prompt(seed, testTokens))))
		require.NoError(t, s.Flush(ctx))
	}
	st := s.Stats()
	require.NotZero(t, st.Demoted)
	require.False(t, st.Remote.Down, "a full tier is not a broken one")
	require.LessOrEqual(t, st.Local.Bytes, o.Local.BudgetBytes)
	require.NotZero(t, st.Remote.Pages)
	for seed := range 40 {
		tokens := prompt(seed, testTokens)
		readChain(t, s, tokens, tokensIn(s.Find(ctx, Prompt{Tokens: tokens}).Exact))
		require.NoError(t, s.Flush(ctx)) // promoted pages take the room of the pages found next
	}
	requireExact(t, s)
	require.Empty(t, filesIn(t, o.Remote.Root, dir.TmpExt))
	require.NoError(t, checkPages(o.Remote.Root))
	require.NoError(t, s.Close())
}
