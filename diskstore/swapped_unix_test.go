//go:build unix

package diskstore

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// TestDirectorySwappedForALink: prompts neither leave a root nor come from elsewhere through a
// link in a directory's place.
func TestDirectorySwappedForALink(t *testing.T) {
	s, o := openNew(t, withFS(nil), withRemote(t))
	tokens := putPrompt(t, s, 1, 2*testTokens)
	refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
	folder, outside := filepath.Join(o.Local.Root, storetest.VersionDir, o.Fingerprint.String()), filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.Rename(folder, outside))
	require.NoError(t, os.Symlink(outside, folder))
	before := filesIn(t, outside, dir.PageExt)

	require.ErrorIs(t, readError(t, s, refs[0], tokens[:testTokens]), tier.ErrNotFound)
	for seed := range 4 {
		err := s.Put(ctx, pageOf(t, s.opt.Fingerprint, 0, prompt(10+seed, testTokens)))
		require.ErrorContains(t, err, folder)
	}
	require.Error(t, s.disk.Touch(ctx, s.pages.Page(refs[0].Key), time.Unix(1_700_000_000, 0)))
	removed, _ := s.disk.Remove(ctx, tier.Info{Name: s.pages.Page(refs[0].Key)})
	require.False(t, removed)
	require.Equal(t, before, filesIn(t, outside, dir.PageExt))

	require.NoError(t, os.Remove(folder))
	require.NoError(t, os.Rename(outside, folder))
	readChain(t, s, tokens, len(tokens))
	putChain(t, s, prompt(20, testTokens))
}
