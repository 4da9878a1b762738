package diskstore

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// TestDropQuarantined: no page of a removed model stays in quarantine, and pages known to be
// other models' stay.
func TestDropQuarantined(t *testing.T) {
	o := testOptions(t)
	pages := putChain(t, open(t, o), prompt(1, 2*testTokens))
	other := o
	other.Fingerprint = testFingerprint(2)
	s := open(t, other)
	theirs := putChain(t, s, prompt(7, testTokens))[0]
	r := openRoot(t, o)
	at := func(o Options, p *pagefile.Page) string {
		return filePath(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassPage, Key: p.Key()})
	}
	flipAt(t, at(o, pages[0]), 4200)   // ours, by its header
	flipAt(t, at(o, pages[1]), 60)     // its header is damaged
	flipAt(t, at(other, theirs), 4200) // the other model's
	var roots inspect.Roots
	roots.Local, roots.Remote = r.Dirs()
	_, err := roots.Check(ctx, inspect.CheckOptions{Repair: true})
	require.NoError(t, err)
	quarantine := filepath.Join(o.Local.Root, storetest.VersionDir, storetest.QuarantineDir)
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
