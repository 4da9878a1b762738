package ram

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const pageTokens = 4

// aPage returns the header and rows of a page of n tokens, and its file. A page of fewer than
// pageTokens tokens is a tail of parent.
func aPage(t require.TestingT, parent byte, first int32, n int) (File, *pagefile.Header, []byte) {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = first + int32(i)
	}
	layout, err := pagefile.NewLayout([]pagefile.Section{{RowBytes: 16}}, n)
	require.NoError(t, err)
	h := &pagefile.Header{Parent: pagefile.Key{parent}, PageTokens: pageTokens, Tokens: tokens, Layout: layout}
	h.Key = pagefile.ChainKey(h.Parent, tokens, nil)
	name := pagefile.Name{Class: pagefile.ClassPage, Key: h.Key}
	if n < pageTokens {
		name = pagefile.Name{Class: pagefile.ClassTail, Key: h.Key}
	}
	rows := make([]byte, layout.Size())
	for i := range layout.Rows(rows, 0) {
		layout.Rows(rows, 0)[i] = byte(first) + byte(i)
	}
	return File{Info: tier.Info{Name: name, Bytes: 100, Used: time.Now()}, Tier: tier.Local}, h, rows
}

// requireSound compares every index of a tier with its pages.
func requireSound(t require.TestingT, w *Tier, pinned map[*Page]int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var used int64
	tails := 0
	for name, p := range w.pages {
		require.Equal(t, name, p.Name)
		require.False(t, p.gone)
		require.NotNil(t, p.place)
		used += Bytes(p.Header)
		if name.Class == pagefile.ClassTail {
			tails++
			require.Contains(t, w.tails[parentOf(p)], p)
		}
	}
	for p, readers := range pinned {
		require.Equal(t, readers, p.readers)
		if p.gone {
			used += Bytes(p.Header) // counted until the last reader unpins the page
		}
	}
	require.Equal(t, used, w.used)
	require.Equal(t, len(w.pages), w.order.Len())
	for _, of := range w.tails {
		require.NotEmpty(t, of, "a parent without tails is forgotten")
		require.LessOrEqual(t, len(of), w.opt.MaxTails)
		tails -= len(of)
	}
	require.Zero(t, tails)
}

// For any order of adding, pinning, dropping and limiting: the counted bytes are the held
// bytes, only rows with readers exceed the limit, and pinned rows do not change.
func TestAccountsAreExact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		now := time.Now()
		w := New(Options{MaxTails: 3, TouchEvery: time.Minute, Tick: func() bool { return false }})
		defer w.Close()
		w.SetClock(func() time.Time { return now })
		_, h, _ := aPage(rt, 0, 0, pageTokens)
		w.SetLimit(5 * Bytes(h))
		pinned := make(map[*Page]int)
		want := make(map[*Page][]byte)
		draw := func() (File, *pagefile.Header, []byte) {
			return aPage(rt, byte(rapid.IntRange(0, 1).Draw(rt, "parent")), int32(rapid.IntRange(0, 4).Draw(rt, "first")),
				rapid.IntRange(1, pageTokens).Draw(rt, "tokens"))
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				requireSound(rt, w, pinned)
				for p := range pinned {
					require.Equal(rt, want[p], p.Rows)
				}
				st := w.Stats()
				tails := 0
				for e := w.order.Front(); e != nil; e = e.Next() {
					if e.Value.(*Page).Name.Class == pagefile.ClassTail {
						tails++
					}
				}
				require.Equal(rt, [2]int{w.order.Len() - tails, tails}, [2]int{st.Pages, st.Tails})
				if len(pinned) == 0 {
					require.LessOrEqual(rt, st.Bytes, st.Limit)
				}
			},
			"add": func(*rapid.T) { w.Add(draw()) },
			"add behind": func(rt *rapid.T) {
				file, h, rows := draw()
				wrong := rapid.Bool().Draw(rt, "cannot be read")
				before := w.Has(file.Name)
				here, err := w.AddBehind(file, h, func(to []byte) error {
					require.False(rt, before)
					copy(to, rows)
					if wrong {
						return errors.New("broken")
					}
					return nil
				})
				if file.Name.Class == pagefile.ClassPage { // a tail may exceed MaxTails
					require.Equal(rt, here, w.Has(file.Name))
				}
				require.True(rt, err == nil || wrong && !here)
			},
			"pin": func(rt *rapid.T) {
				file, _, rows := draw()
				p := w.Pin(file.Name)
				require.Equal(rt, p != nil, w.Has(file.Name))
				if p != nil {
					pinned[p]++
					want[p] = rows
					require.Equal(rt, file.Name, w.Served(p).Name)
				}
			},
			"unpin": func(rt *rapid.T) {
				for p := range pinned {
					if pinned[p]--; pinned[p] == 0 {
						delete(pinned, p)
					}
					w.Unpin(p)
					return
				}
			},
			"drop":    func(*rapid.T) { file, _, _ := draw(); w.Drop(file.Name); require.False(rt, w.Has(file.Name)) },
			"limit":   func(rt *rapid.T) { w.SetLimit(int64(rapid.IntRange(0, 6).Draw(rt, "pages")) * Bytes(h)) },
			"confirm": func(rt *rapid.T) { file, _, _ := draw(); require.Equal(rt, w.Has(file.Name), w.Confirm(file)) },
			"time":    func(*rapid.T) { now = now.Add(Lease / 2) },
			"fresh": func(rt *rapid.T) {
				file, _, _ := draw()
				if found, fresh := w.Fresh(file.Name); fresh {
					require.True(rt, w.Has(file.Name))
					require.Equal(rt, tier.Local, found.Tier)
				}
			},
		})
		for p, n := range pinned {
			for range n {
				w.Unpin(p)
			}
		}
		w.Close()
		require.Equal(rt, [3]int64{}, [3]int64{w.Stats().Bytes, int64(w.Stats().Pages), int64(w.Stats().Tails)})
		require.False(rt, w.Holds())
	})
}

// A page whose file was not checked for UnseenAge is named by Unseen; without a check within
// Lease it is not served until its file was seen.
func TestLease(t *testing.T) {
	now := time.Now()
	w := New(Options{MaxTails: 3, TouchEvery: time.Minute, Tick: func() bool { return false }})
	defer w.Close()
	w.SetClock(func() time.Time { return now })
	w.SetLimit(1 << 20)
	file, h, rows := aPage(t, 0, 0, pageTokens)
	w.Add(file, h, rows)
	_, fresh := w.Fresh(file.Name)
	require.True(t, fresh)
	now = now.Add(Lease)
	_, fresh = w.Fresh(file.Name)
	require.False(t, fresh)
	require.Empty(t, w.Unseen())
	now = now.Add(UnseenAge - Lease)
	require.Equal(t, []pagefile.Name{file.Name}, w.Unseen())
	file.Tier = tier.Remote
	require.True(t, w.Confirm(file))
	found, fresh := w.Fresh(file.Name)
	require.True(t, fresh)
	require.Equal(t, tier.Remote, found.Tier)
	require.Empty(t, w.Unseen())
}

// A tier without a limit holds nothing.
func TestTierWithoutRoom(t *testing.T) {
	w := New(Options{})
	file, h, rows := aPage(t, 0, 0, 1)
	w.Add(file, h, rows)
	require.Nil(t, w.Pin(file.Name))
	_, fresh := w.Fresh(file.Name)
	require.False(t, fresh)
	require.False(t, w.Confirm(file))
	require.Empty(t, w.TailsOf(pagefile.Key{}, pagefile.Key{}))
	w.Drop(file.Name)
}
