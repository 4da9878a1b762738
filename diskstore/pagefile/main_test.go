package pagefile

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/diskstore/internal/testrows"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

const testTokens = 8

// testSections have odd row sizes, two groups and the kinds K and V.
var testSections = []Section{
	{Group: 0, Layer: 0, Kind: KindK, RowBytes: 64},
	{Group: 0, Layer: 0, Kind: KindV, RowBytes: 52},
	{Group: 1, Layer: 1, Kind: KindK, RowBytes: 4096},
	{Group: 1, Layer: 1, Kind: KindV, RowBytes: 1},
}

func testFingerprint(n byte) Key { return Key{0: n, 31: 0xfe} }

func prompt(seed, n int) []int32 { return testrows.Prompt(seed, n) }

func layoutOf(t testing.TB, sections []Section, tokens int) Layout {
	t.Helper()
	l, err := NewLayout(sections, tokens)
	require.NoError(t, err)
	return l
}

// fillRows fills every section of a page with bytes derived from the page's key.
func fillRows(l Layout, key Key, payload []byte) {
	sections := make([][]byte, l.Len())
	for i := range sections {
		sections[i] = l.Rows(payload, i)
	}
	testrows.Fill(key, sections)
}

// pageOf makes a page of the given sections with rows derived from the page's key.
func pageOf(t testing.TB, sections []Section, parent Key, tokens []int32, media ...Media) *Page {
	t.Helper()
	l := layoutOf(t, sections, len(tokens))
	p := &Page{Parent: parent, Tokens: tokens, Media: media, Layout: l, Payload: make([]byte, l.Size())}
	fillRows(l, p.Key(), p.Payload)
	return p
}
