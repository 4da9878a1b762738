package checked

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

func TestBadFilesBeginAgainAfterAnHourWithoutDamage(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	v := NewBadFiles(true, func() time.Time { return now })
	condemn := func() bool {
		for range condemnSound {
			v.good()
		}
		ok, _ := v.MayCondemn()
		return ok
	}
	for range CondemnedRemote {
		require.True(t, condemn())
	}
	for range 4 { // further damage prevents a new start
		require.False(t, condemn())
		require.True(t, v.spent)
		now = now.Add(condemnHour - time.Minute)
	}
	now = now.Add(time.Minute)
	require.True(t, condemn())
	require.False(t, v.spent)
	ok, _ := v.MayCondemn()
	require.False(t, ok, "no good file was found since")
	require.True(t, condemn())

	// Bad files are bounded, expire, and apply to one file alone.
	info := tier.Info{Name: pagefile.Name{Class: pagefile.ClassPage}, Bytes: 5, Used: now}
	for i := range maxBadPages + 10 {
		info.Key = pagefile.Key{byte(i), byte(i >> 8)}
		v.Note(info, 0)
	}
	require.Len(t, v.files, maxBadPages)
	require.Len(t, v.order, maxBadPages)
	require.True(t, v.IsBad(info))
	touched := info
	touched.Used = touched.Used.Add(time.Second)
	require.False(t, v.IsBad(touched))
	now = now.Add(badLife)
	require.False(t, v.IsBad(info))
	v.Forget(info.Name)
	require.Len(t, v.order, maxBadPages-1)
}

func TestCopiesAreBounded(t *testing.T) {
	c := newSeen(CopyLife, MaxCopies, time.Now)
	for i := range MaxCopies + 10 {
		info := tier.Info{Name: pagefile.Name{Key: pagefile.Key{byte(i), byte(i >> 8), 1}}}
		c.Note(info, 7)
		crc, known := c.Knows(info)
		require.True(t, known)
		require.EqualValues(t, 7, crc)
	}
	require.LessOrEqual(t, len(c.files), MaxCopies)
}
