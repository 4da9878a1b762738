package diskstore

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// The tests try every limit of the page format on both sides: as an argument, and in the
// header of a file, which is not trusted. Other tests try the limits of the breaker
// (TestBreaker), quarantine (TestDamageIsQuarantinedAndRepaired), recency
// (TestTouchIsThrottled), orphans (TestStaleTemporaryFilesAreCleaned) and free space
// (TestUnlimitedTierKeepsSomeOfTheDiskFree).

func TestLimitOfPageTokens(t *testing.T) {
	o := testOptions(t, func(o *Options) { o.PageTokens = pagefile.MaxTokens })
	require.NoError(t, open(t, o).Close())
	o.PageTokens++
	_, err := Open(ctx, o)
	require.ErrorIs(t, err, ErrOptions)
}

func TestLimitOfMediaInAPut(t *testing.T) {
	s := open(t, testOptions(t))
	media := make([]pagefile.Media, pagefile.MaxMedia+1)
	p := faultPage(t, s.opt.Fingerprint, 0, prompt(1, testTokens))
	p.Media = media
	require.ErrorIs(t, s.Put(ctx, p), pagefile.ErrInvalidPage)
	p.Media = media[:pagefile.MaxMedia]
	fillRows(p.Layout, p.Key(), p.Payload)
	require.NoError(t, s.Put(ctx, p))
	refs := s.Find(ctx, Prompt{Tokens: p.Tokens, Media: p.Media}).Exact
	require.Len(t, refs, 1)
	buf := make([]byte, p.Layout.Size())
	require.NoError(t, s.Read(ctx, refs[0], p.Tokens, p.Layout, Into{Rows: buf}))
	require.Equal(t, p.Payload, buf)
}

func TestLimitOfAManifest(t *testing.T) {
	for _, size := range []int{tier.MaxManifestBytes, tier.MaxManifestBytes + 1} {
		s, o := openNew(t)
		require.NoError(t, s.Close())
		path := filePath(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassManifest})
		text := fileOf(t, path)
		text = append(text, bytes.Repeat([]byte(" "), size-len(text))...)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		tr := dir.New(quickFS, o.Local.Root, dir.Options{Create: true})
		m, err := tier.ReadManifest(ctx, tr, o.Fingerprint)
		if size <= tier.MaxManifestBytes {
			require.NoError(t, err)
			require.Equal(t, o.Identity, m.Identity)
		} else {
			require.ErrorIs(t, err, pagefile.ErrDamaged)
		}
		require.NoError(t, tr.Close())
	}
}
