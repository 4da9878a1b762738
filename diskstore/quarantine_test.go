package diskstore

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// TestDropQuarantined: of a model that is forgotten nothing stays in quarantine,
// and of others what is known to be theirs.
func TestDropQuarantined(t *testing.T) {
	o, pages := stored(t)
	other := o
	other.Fingerprint = testFingerprint(2)
	s := open(t, other)
	theirs := putChain(t, s, prompt(7, testTokens))[0]
	r := openRoot(t, o)
	flipAt(t, filePath(o.Local.Root, storedAt(o, pages[0])), 4200)   // ours, by its header
	flipAt(t, filePath(o.Local.Root, storedAt(o, pages[1])), 60)     // its header says nothing
	flipAt(t, filePath(o.Local.Root, storedAt(other, theirs)), 4200) // theirs
	check(t, rootsOf(t, o), inspect.CheckOptions{Repair: true})
	quarantine := filepath.Join(o.Local.Root, dir.VersionDir, dir.QuarantineDir)
	require.Len(t, filesIn(t, quarantine, dir.PageExt), 3)
	ours := func(fp pagefile.Key) bool { return fp == o.Fingerprint }

	drops, err := r.DropQuarantined(ctx, ours, true)
	require.NoError(t, err)
	require.Equal(t, 2, drops[0].Files)
	require.Len(t, filesIn(t, quarantine, dir.PageExt), 3)
	drops, err = r.DropQuarantined(ctx, ours, false)
	require.NoError(t, err)
	require.Equal(t, 2, drops[0].Files)
	left := filesIn(t, quarantine, dir.PageExt)
	require.Len(t, left, 1)
	require.Contains(t, left[0], theirs.Key().String())
	drops, err = r.DropQuarantined(ctx, ours, false)
	require.NoError(t, err)
	require.Equal(t, []QuarantineDrop{{Tier: tier.Local}}, drops)
}
