// Package storetest makes the pages, files and filesystems that tests of the store share.
package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/testrows"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Tokens is a page size small enough to make chains of many pages cheap.
const Tokens = 8

// Sections have odd row sizes, two groups and the kinds K and V.
var Sections = []pagefile.Section{
	{Group: 0, Layer: 0, Kind: pagefile.KindK, RowBytes: 64},
	{Group: 0, Layer: 0, Kind: pagefile.KindV, RowBytes: 52},
	{Group: 1, Layer: 1, Kind: pagefile.KindK, RowBytes: 4096},
	{Group: 1, Layer: 1, Kind: pagefile.KindV, RowBytes: 1},
}

// Fingerprint returns a fingerprint for each n.
func Fingerprint(n byte) pagefile.Key { return pagefile.Key{0: n, 31: 0xfe} }

// Layout returns the layout of a page of the given number of tokens.
func Layout(t testing.TB, sections []pagefile.Section, tokens int) pagefile.Layout {
	t.Helper()
	l, err := pagefile.NewLayout(sections, tokens)
	require.NoError(t, err)
	return l
}

// Fill fills every section of a page with bytes derived from the page's key.
func Fill(l pagefile.Layout, key pagefile.Key, payload []byte) {
	sections := make([][]byte, l.Len())
	for i := range sections {
		sections[i] = l.Rows(payload, i)
	}
	testrows.Fill(key, sections)
}

// Page makes a page of Sections with rows derived from the page's key.
func Page(t testing.TB, parent pagefile.Key, start int, tokens []int32, media ...pagefile.Media) *pagefile.Page {
	t.Helper()
	l := Layout(t, Sections, len(tokens))
	p := &pagefile.Page{Parent: parent, Start: uint32(start), Tokens: tokens, Media: media, Layout: l, Payload: make([]byte, l.Size())}
	Fill(l, p.Key(), p.Payload)
	return p
}

// Chain makes the pages of tokens: full pages and, for remaining tokens, a tail.
func Chain(t testing.TB, fingerprint pagefile.Key, pageTokens int, tokens []int32) []*pagefile.Page {
	t.Helper()
	var pages []*pagefile.Page
	parent := fingerprint
	for at := 0; at < len(tokens); at += pageTokens {
		p := Page(t, parent, at, tokens[at:min(at+pageTokens, len(tokens))])
		pages = append(pages, p)
		parent = p.Key()
	}
	return pages
}
