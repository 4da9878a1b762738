package diskstore

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// TestModel drives a store with random operations and compares it with a set of the stored
// prefixes.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := testOptions(t, func(o *Options) { o.PageTokens = 3 })
		s := start(rt, o)
		m := &model{t: t, s: s, o: o, pages: map[string]pagefile.Key{}, tails: map[string]map[string]bool{}}
		defer func() { require.NoError(rt, m.s.Close()) }()
		rt.Repeat(map[string]func(*rapid.T){
			"put":     m.put,
			"chain":   m.chain,
			"reopen":  m.reopen,
			"destroy": m.destroy,
			"":        m.count,
		})
	})
}

type model struct {
	t *testing.T
	s *Store
	o Options

	pages map[string]pagefile.Key    // tokens from 0 to the page's end → key
	tails map[string]map[string]bool // tokens before the tail → tokens up to its end
}

// Two tokens and short sequences make common prefixes frequent.
var someTokens = rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 11)

func asString(tokens []int32) string {
	b := make([]byte, len(tokens))
	for i, v := range tokens {
		b[i] = byte('0' + v)
	}
	return string(b)
}

func (m *model) put(rt *rapid.T) {
	tokens := someTokens.Draw(rt, "tokens")
	n := m.o.PageTokens
	for i, p := range putChain(m.t, m.s, tokens) {
		end := min((i+1)*n, len(tokens))
		whole := asString(tokens[:end])
		if len(p.Tokens) == n {
			m.pages[whole] = p.Key()
			continue
		}
		before := asString(tokens[:i*n])
		if m.tails[before] == nil {
			m.tails[before] = map[string]bool{}
		}
		if m.tails[before][whole] {
			continue // stored already: no change
		}
		for old := range m.tails[before] {
			if len(old) < len(whole) && whole[:len(old)] == old {
				delete(m.tails[before], old)
			}
		}
		m.tails[before][whole] = true
	}
}

func (m *model) chain(rt *rapid.T) {
	tokens := someTokens.Draw(rt, "tokens")
	all, n, want := asString(tokens), m.o.PageTokens, 0
	for want+n <= len(tokens) && m.pages[all[:want+n]] != (pagefile.Key{}) {
		want += n
	}
	best := 0
	share := func(stored string) {
		common := 0
		for want+common < min(len(stored), len(all)) && stored[want+common] == all[want+common] {
			common++
		}
		best = max(best, common)
	}
	for tail := range m.tails[all[:want]] {
		share(tail)
	}
	for page := range m.pages {
		if len(page) == want+n && page[:want] == all[:want] {
			share(page)
		}
	}
	readChain(m.t, m.s, tokens, want+best)
}

func (m *model) reopen(rt *rapid.T) {
	require.NoError(rt, m.s.Close())
	s := start(rt, m.o)
	m.s = s
	require.NoError(rt, m.s.Flush(ctx))
}

// destroy removes one page as an eviction does.
func (m *model) destroy(rt *rapid.T) {
	tokens := someTokens.Draw(rt, "tokens")
	tokens = tokens[:len(tokens)/m.o.PageTokens*m.o.PageTokens]
	key, ok := m.pages[asString(tokens)]
	if !ok {
		rt.Skip("not stored")
	}
	info, err := tier.Stat(ctx, m.s.disk, m.s.pages.Page(key))
	require.NoError(rt, err)
	evictPage(rt, m.s, info)
	delete(m.pages, asString(tokens))
}

func (m *model) count(rt *rapid.T) {
	require.NoError(rt, m.s.Flush(ctx))
	tails := 0
	for _, of := range m.tails {
		tails += len(of)
	}
	st := m.s.Stats()
	require.Equal(rt, len(m.pages), st.Local.Pages)
	require.Equal(rt, tails, st.Local.Tails)
	require.Zero(rt, st.Damaged+st.Mismatched+st.TierErrors)
}
