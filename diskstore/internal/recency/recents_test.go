package recency

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Of a long listing only files that fit are kept.
func TestRecentsKeepWhatFits(t *testing.T) {
	r := ToRead(10*100, pagefile.Key{1})
	r.most = 64
	now := time.Now()
	for i := range 1000 {
		n := (i * 617) % 1000 // in no order
		name := pagefile.Name{Fingerprint: pagefile.Key{1}, Key: pagefile.Key{byte(n), byte(n >> 8)}}
		r.Add(tier.Info{Name: name, Bytes: 100, Used: now.Add(-time.Duration(n) * time.Second)})
		require.LessOrEqual(t, len(r.files), 2*r.most)
		require.LessOrEqual(t, r.held, int64(2*10*100))
	}
	files := r.Order()
	require.Len(t, files, 10)
	for i, info := range files {
		require.Equal(t, pagefile.Key{byte(i), byte(i >> 8)}, info.Key)
	}
	r = ToRead(math.MaxInt64, pagefile.Key{1})
	r.most = 64
	for n := range 1000 {
		r.Add(tier.Info{Name: pagefile.Name{Fingerprint: pagefile.Key{1}, Key: pagefile.Key{byte(n), byte(n >> 8)}}, Bytes: 1, Used: now.Add(-time.Duration(n) * time.Second)})
	}
	require.Len(t, r.Order(), 64)
}

// Without a limit, a long listing is not sorted for every file.
func TestRecentsWithoutALimit(t *testing.T) {
	r := ToRead(math.MaxInt64, pagefile.Key{})
	r.most = 128
	for range 200 {
		r.Add(tier.Info{Bytes: 1})
	}
	require.Equal(t, 200, len(r.files), "sorted and cut once there are twice as many as wanted")
	require.Equal(t, 128, len(r.Order()))
}
