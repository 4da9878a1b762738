package tombstones

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

var now = time.Date(2026, 2, 3, 4, 5, 6, 789e6, time.UTC)

func key(n int) pagefile.Key { return pagefile.Key{byte(n), byte(n >> 8), byte(n >> 16), 15: 7, 31: 9} }

func TestRecordsComeBack(t *testing.T) {
	var l List
	for i := range 100 {
		l.Add(Of(key(i), now.Add(time.Duration(i)*time.Second), byte(1+i%4), 0, now))
	}
	content := l.Merge(nil, now)
	require.Len(t, content, 100*recordBytes)
	var other List
	g, ok := other.Find(content, []pagefile.Key{key(40), key(41), key(1000)})
	require.True(t, ok)
	require.True(t, g.Is(key(41)))
	require.True(t, g.When.Equal(now.Add(41*time.Second)))
	require.Equal(t, byte(2), g.Reason)
	_, ok = other.Find(content, []pagefile.Key{key(100)})
	require.False(t, ok)
	_, ok = l.Find(nil, []pagefile.Key{key(7)})
	require.True(t, ok, "before it is written")
}

// Of any bytes only whole records count: no flipped bit makes another one.
func TestGarbageIsLeftOut(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var l List
	l.Add(Of(key(1), now, 1, 0, now))
	good := l.Merge(nil, now)
	for bit := range 8 * recordBytes {
		bad := append([]byte(nil), good...)
		bad[bit/8] ^= 1 << (bit % 8)
		require.Empty(t, Decode(bad), bit)
	}
	for n := range 200 {
		bytes := make([]byte, n)
		for i := range bytes {
			bytes[i] = byte(rng.Uint32())
		}
		require.Empty(t, Decode(bytes))
	}
	require.Empty(t, Decode(make([]byte, BytesMax)), "zeros, as after a power cut")
	require.Len(t, Decode(append(make([]byte, recordBytes), good...)), 1)
	require.Len(t, Decode(append(good, 1, 2, 3)), 1)
}

// Two processes that write at the same moment lose records of one, which come back.
func TestLostChangesComeBack(t *testing.T) {
	var a, b List
	a.Add(Of(key(1), now, 1, 0, now))
	b.Add(Of(key(2), now, 1, 0, now))
	fresh := a.Fresh()
	lost := a.Merge(nil, now)
	content := b.Merge(nil, now)
	a.Written(fresh)
	require.NotEmpty(t, lost)
	require.Zero(t, a.Fresh())
	a.Add(Of(key(3), now, 1, 0, now))
	content = a.Merge(content, now)
	for i := range 3 {
		_, ok := new(List).Find(content, []pagefile.Key{key(i + 1)})
		require.True(t, ok, i)
	}
	content = a.Merge(content, now)
	require.Empty(t, a.own, "all are in the list")
	require.Len(t, content, 3*recordBytes)
}

func TestListsAreBounded(t *testing.T) {
	var l List
	var content []byte
	for i := range 5 * Max {
		l.Add(Of(key(i), now.Add(time.Duration(i)*time.Millisecond), 1, 0, now))
		require.Less(t, len(l.own), 2*Max)
		require.LessOrEqual(t, l.Fresh(), len(l.own))
		if i%(Max/2) == 0 {
			content = l.Merge(content, now.Add(time.Hour))
			require.LessOrEqual(t, len(content), BytesMax)
		}
	}
	content = l.Merge(content, now.Add(time.Hour))
	require.Len(t, content, BytesMax)
	_, ok := new(List).Find(content, []pagefile.Key{key(5*Max - 1)})
	require.True(t, ok, "the latest")
	_, ok = new(List).Find(content, []pagefile.Key{key(1)})
	require.False(t, ok, "the oldest")
	require.Len(t, Decode(append(content, content...)), Max)
}

// A record from a clock that is far ahead does not outlive all others.
func TestRecordsOfTheFuture(t *testing.T) {
	var l List
	l.Add(Of(key(1), now.AddDate(1, 0, 0), 1, 0, now))
	l.Add(Of(key(2), now.Add(time.Hour), 1, 0, now))
	require.Len(t, l.Merge(nil, now), recordBytes)
}
