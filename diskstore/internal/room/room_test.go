package room

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// Deleting is tried again, each time after twice the pause.
func TestBackoff(t *testing.T) {
	var f Backoff
	now := time.Now()
	require.False(t, f.Is(now))
	for _, pause := range []time.Duration{RefusalLasts, 2 * RefusalLasts, 4 * RefusalLasts} {
		f.Note(now)
		require.True(t, f.Is(now.Add(pause-1)))
		require.False(t, f.Is(now.Add(pause)))
	}
	for range 20 {
		f.Note(now)
	}
	require.False(t, f.Is(now.Add(backoffMost)))
	f.Clear()
	require.False(t, f.Is(now))
	f.Note(now)
	require.False(t, f.Is(now.Add(RefusalLasts)), "a page was written")
}

func TestVictimsAreTheOldestAndFew(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	start := time.Unix(1_700_000_000, 0)
	for _, most := range []int{8, 1 << 16} {
		for _, first := range []int{0, 3000, 8500} { // files from there on are obsolete, but not those in use, from 8000 on
			v := &victims{need: 100, before: start.Add(9000 * time.Second), most: most, obsolete: map[pagefile.Key]bool{{9}: true}, recent: start.Add(8000 * time.Second)}
			for _, at := range rng.Perm(10_000) {
				info := tier.Info{Name: tiertest.Page(byte(at)), Physical: 10, Used: start.Add(time.Duration(at) * time.Second)}
				if at >= first {
					info.Fingerprint = pagefile.Key{9}
				}
				v.add(info)
				require.LessOrEqual(t, len(v.files), max(2*most, 2048))
			}
			for i, info := range v.order(nil) {
				require.Equal(t, start.Add(time.Duration(first%8500+i)*time.Second), info.Used)
			}
			require.Len(t, v.files, min(10, most))
			require.True(t, v.more)
		}
	}

	// Files with equal times stay together, and none of them is used later than allowed.
	v := &victims{need: 10, before: start.Add(time.Second), most: 2}
	for n := range byte(20) {
		v.add(tier.Info{Name: tiertest.Tail(n), Physical: 10, Used: start})
		v.add(tier.Info{Name: tiertest.Tail(100 + n), Physical: 10, Used: start.Add(time.Second)})
	}
	require.Len(t, v.order(nil), 20)
}

// A trim that may take no other file says so: another listing would yield no more.
func TestATrimThatLacksOldFilesHasNoMore(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	for _, old := range []int{1, 20} {
		v := &victims{need: 100, before: start.Add(time.Duration(old) * time.Second), trim: true, most: maxVictims}
		for n := range 50 {
			v.add(tier.Info{Name: tiertest.Page(byte(n)), Physical: 10, Used: start.Add(time.Duration(n) * time.Second)})
		}
		require.Len(t, v.order(nil), min(old, 10))
		require.Equal(t, old > 10, v.more)
	}
}
