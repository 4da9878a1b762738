package llamatier

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/rates"
)

// TestThePriceKnowsTheForm: the bytes of a page are those of its file, the bytes that llama-server
// loads those of its rows.
func TestThePriceKnowsTheForm(t *testing.T) {
	const tokens = 1 << 14 // rows that are large beside a header
	rows := fakeShape.RowBytes(tokens, 0)
	w := newWorld(t, 1, 1000)
	p := &plan{}
	for _, bytes := range []int64{rows + 4096, rows * 5 / 6, rows / 3} {
		p.refs = append(p.refs, diskstore.Ref{Tokens: tokens, Stored: tokens, Tier: "local", Bytes: bytes})
	}
	for i, want := range []rates.Form{rates.Whole, rates.Packed, rates.Quarter} {
		page := w.tier.saver.form.costs(p).Pages[i]
		require.Equal(t, want, page.Form)
		require.InDelta(t, p.refs[i].Bytes, page.Bytes, 4096)
		require.InDelta(t, rows, page.Rows, 4096)
	}

	// The first page of a model with a state ends without one, the second page with one.
	w.hybrid = true
	w.start(1, 1000)
	sections, err := w.tier.saver.form.layout(&plan{}, 0, tokens)
	require.NoError(t, err)
	p.refs = []diskstore.Ref{{Stored: tokens, Bytes: int64(sections.Size()) + 4096}, {Stored: tokens, Bytes: int64(sections.Size()) / 2}}
	for i, want := range []rates.Form{rates.Whole, rates.Half} {
		require.Equal(t, want, w.tier.saver.form.costs(p).Pages[i].Form)
	}
}
