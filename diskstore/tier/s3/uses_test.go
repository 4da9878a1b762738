package s3

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// clocks are those of a store and of machines that differ from it.
type clocks struct{ now time.Time }

func (c *clocks) skewed(by time.Duration) func() time.Time {
	return func() time.Time { return c.now.Add(by) }
}

// requireUsed requires that a machine knows of a use, within the resolution of an answer's time.
func requireUsed(t *testing.T, tr *Tier, name pagefile.Name, used time.Time) {
	t.Helper()
	_, _, err := tr.Survey(t.Context())
	require.NoError(t, err)
	infos, err := tr.ListShard(t.Context(), tier.ShardOf(name))
	require.NoError(t, err)
	require.Len(t, infos, 1)
	require.WithinDuration(t, used, infos[0].Used, 2*time.Second)
	info, err := tier.Stat(t.Context(), tr, name)
	require.NoError(t, err)
	require.Equal(t, infos[0], info)
}

// TestNote: uses cost no request, all of them are one object, and the next collector folds it, however wrong the
// clock is that they were noted by.
func TestNote(t *testing.T) {
	for _, skew := range []time.Duration{0, 20 * time.Minute, -20 * time.Minute} {
		c := &clocks{now: time.Now()}
		f := newFake(c.skewed(0))
		a, b := f.open(c.skewed(skew)), f.open(c.skewed(0))
		for n := range byte(10) {
			tiertest.Upload(t, a, tiertest.Page(n), []byte("page"), c.now.Add(-time.Hour))
		}
		before := f.requests
		c.now = c.now.Add(time.Hour)
		for n := range byte(10) {
			require.True(t, a.Note(tiertest.Page(n), c.skewed(skew)()))
			require.True(t, a.Note(tiertest.Page(n), c.skewed(skew)().Add(-time.Minute)), "earlier")
		}
		require.Equal(t, before, f.requests)
		requireUsed(t, a, tiertest.Page(3), c.now)
		requireUsed(t, b, tiertest.Page(3), c.now.Add(-2*time.Hour))
		before = f.requests
		a.writeUses(t.Context())
		require.Equal(t, before+1, f.requests)
		requireKeys(t, f, usesFolder, 1)
		requireUsed(t, b, tiertest.Page(3), c.now)

		release, err := b.Lock(t.Context())
		require.NoError(t, err)
		release()
		require.Equal(t, []string{"folded"}, f.keys(usesFolder))
		third := f.open(c.skewed(0))
		requireUsed(t, third, tiertest.Page(3), c.now)

		require.NoError(t, third.Touch(t.Context(), tiertest.Page(3), c.now.Add(-time.Hour)))
		info, err := tier.Stat(t.Context(), third, tiertest.Page(3))
		require.NoError(t, err)
		require.WithinDuration(t, c.now.Add(-time.Hour), info.Used, 0, "Touch is exact")
		require.NoError(t, a.Close())
		require.False(t, a.Note(tiertest.Page(3), c.now))
	}
}

// TestNotesAreBounded, in memory and in an object.
func TestNotesAreBounded(t *testing.T) {
	c := &clocks{now: time.Now()}
	f := newFake(c.skewed(0))
	a := f.open(c.skewed(0))
	name := tiertest.Page(1)
	for n := range usesMost + 10 {
		name.Key[1], name.Key[2] = byte(n), byte(n>>8)
		require.True(t, a.Note(name, c.now))
	}
	require.NoError(t, a.Close(), "which writes them")
	require.Len(t, f.keys(usesFolder), 1)
	for key, o := range f.objects {
		require.Equal(t, usesMost*useBytes, len(o.content), key)
	}
}

// TestTwoFold: of two that collect at the same time, because one has slept, one folds, and no use is lost.
func TestTwoFold(t *testing.T) {
	c := &clocks{now: time.Now()}
	f := newFake(c.skewed(0))
	a, b := f.open(c.skewed(0)), f.open(c.skewed(0))
	for n := range byte(3) {
		tiertest.Upload(t, a, tiertest.Page(n), []byte("page"), c.now.Add(-time.Hour))
	}
	a.Note(tiertest.Page(0), c.now)
	a.writeUses(t.Context())
	first, err := a.Lock(t.Context())
	require.NoError(t, err)
	_, err = b.Lock(t.Context())
	require.ErrorIs(t, err, tier.ErrLocked)
	c.now = c.now.Add(lockLife + 2*time.Second)
	b.Note(tiertest.Page(1), c.now)
	b.writeUses(t.Context())
	second, err := b.Lock(t.Context())
	require.NoError(t, err)
	second()
	a.Note(tiertest.Page(2), c.now)
	a.writeUses(t.Context())
	first()
	third := f.open(c.skewed(0))
	requireUsed(t, third, tiertest.Page(0), c.now.Add(-lockLife-2*time.Second))
	requireUsed(t, third, tiertest.Page(1), c.now)
	requireUsed(t, third, tiertest.Page(2), c.now)

	release, err := b.Lock(t.Context())
	require.NoError(t, err, "the one that slept leaves the lock free")
	first()
	_, err = a.Lock(t.Context())
	require.ErrorIs(t, err, tier.ErrLocked, "and does not unlock another's")
	release()
}

// TestSleeperLooksAgain: one that slept since it listed removes no page that was used meanwhile.
func TestSleeperLooksAgain(t *testing.T) {
	c := &clocks{now: time.Now()}
	f := newFake(c.skewed(0))
	a, b := f.open(c.skewed(0)), f.open(c.skewed(0))
	tiertest.Upload(t, a, tiertest.Page(1), []byte("page"), c.now)
	_, _, err := a.Survey(t.Context())
	require.NoError(t, err)
	judged, err := tier.Stat(t.Context(), a, tiertest.Page(1))
	require.NoError(t, err)
	c.now = c.now.Add(usesEvery)
	b.Note(tiertest.Page(1), c.now)
	b.writeUses(t.Context())
	_, err = a.Remove(t.Context(), judged)
	require.ErrorIs(t, err, tier.ErrReplaced)
}

// TestRenew: a page that is used is copied onto itself once it is old, and once only, behind the note of its use.
func TestRenew(t *testing.T) {
	c := &clocks{now: time.Now().Truncate(time.Second)}
	f := newFake(c.skewed(0))
	a := f.open(c.skewed(0))
	a.Renew = 24 * time.Hour
	for n := range byte(2) {
		tiertest.Upload(t, a, tiertest.Page(n), []byte("page"), c.now)
	}
	copies, notes := 0, 0
	f.before = func(r *http.Request) {
		if r.Header.Get("X-Amz-Copy-Source") != "" {
			copies++
			requireKeys(t, f, usesFolder, notes)
			require.True(t, strings.HasSuffix(r.URL.Path, objectKey(tiertest.Page(1))))
		}
	}
	for hour := range 50 {
		notes++
		_, err := tier.Stat(t.Context(), a, tiertest.Page(1))
		require.NoError(t, err)
		a.Note(tiertest.Page(1), c.now)
		a.writeUses(t.Context())
		require.Equal(t, hour/25, copies, hour)
		c.now = c.now.Add(time.Hour)
	}
}

// TestOldest: what one fold reads is bounded in number and in bytes, and never nothing.
func TestOldest(t *testing.T) {
	notes := func(n int, bytes int64) []object { return slices.Repeat([]object{{bytes: bytes}}, n) }
	require.Empty(t, oldest(nil))
	require.Len(t, oldest(notes(5, 1000)), 5)
	require.Len(t, oldest(notes(5000, 1000)), notesMost)
	require.Len(t, oldest(notes(notesMost, usesMost*useBytes)), noteBytesMost/(usesMost*useBytes))
	require.Len(t, oldest(notes(2, 1<<40)), 1)
}
