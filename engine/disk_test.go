package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/steady"
)

// slowPages find one page before their caller's time is over.
type slowPages struct{ Pages }

func (slowPages) Find(ctx context.Context, p diskstore.Prompt) diskstore.Found {
	<-ctx.Done()
	return diskstore.Found{Exact: []diskstore.Ref{{Key: pagefile.Key{1}}}}
}

// TestWhatASlowDiskFinds is of use, and the disk does not count as one that hangs.
func TestWhatASlowDiskFinds(t *testing.T) {
	d := Disk[Pages]{Store: slowPages{}, Patience: Patience{Look: time.Millisecond, Find: time.Hour, Grace: time.Hour}}
	found, err := d.Find(t.Context(), diskstore.Prompt{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Len(t, found.Exact, 1)
	require.False(t, d.Hangs())
}

// Has knows each page: one look is no search.
func (slowPages) Has(pagefile.Key) bool { return true }

// TestARequestWaitsOnceForASlowDisk, however often it looks. A save, which asks for single pages, still
// learns that they are stored.
func TestARequestWaitsOnceForASlowDisk(t *testing.T) {
	d := Disk[Pages]{Store: slowPages{}, Patience: Patience{Look: time.Millisecond, Find: time.Hour, Grace: time.Hour}}
	d.slow.Store(time.Now().Add(time.Hour).UnixNano())
	_, err := d.Find(t.Context(), diskstore.Prompt{})
	require.ErrorIs(t, err, steady.ErrHung)
	has, err := d.Has(t.Context(), pagefile.Key{})
	require.NoError(t, err)
	require.True(t, has)
}
