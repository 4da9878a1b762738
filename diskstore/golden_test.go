package diskstore

import (
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// goldenDir holds pages that an earlier version wrote, and their content in pages.json for schema 1
// and in pages-2.json for schema 2. The files are never written again: every later version has to
// read them.
const goldenDir = "testdata/golden"

// goldenPage is an entry of pages.json. Keys, hashes and rows are hexadecimal.
type goldenPage struct {
	File        string          `json:"file"`
	Fingerprint string          `json:"fingerprint"`
	Key         string          `json:"key"`
	Parent      string          `json:"parent"`
	Start       uint32          `json:"start"`
	PageTokens  int             `json:"page_tokens"`
	Tokens      []int32         `json:"tokens"`
	Media       []goldenMedia   `json:"media"`
	Sections    []goldenSection `json:"sections"`
}

type goldenMedia struct {
	Offset uint32 `json:"offset"`
	Hash   string `json:"hash"`
}

type goldenSection struct {
	Group    uint16 `json:"group"`
	Layer    uint16 `json:"layer"`
	Kind     string `json:"kind"`
	RowBytes uint32 `json:"row_bytes"`
	Encoding string `json:"encoding"`
	Rows     string `json:"rows"`
}

// goldenPages returns the pages of a list in goldenDir.
func goldenPages(t *testing.T, list string) []goldenPage {
	t.Helper()
	text := fileOf(t, filepath.Join(goldenDir, list))
	var pages []goldenPage
	require.NoError(t, json.Unmarshal(text, &pages))
	require.NotEmpty(t, pages)
	return pages
}

// TestGoldenPages puts each golden page in its place in a store and reads it.
func TestGoldenPages(t *testing.T) {
	tails, media, encodings := false, false, make(map[pagefile.Encoding]bool)
	var pages []goldenPage
	for _, list := range []string{"pages.json", "pages-2.json"} {
		pages = append(pages, goldenPages(t, list)...)
	}
	for _, g := range pages {
		t.Run(g.File, func(t *testing.T) {
			fingerprint, key, parent := mustKey(t, g.Fingerprint), mustKey(t, g.Key), mustKey(t, g.Parent)
			s, o := openNew(t, func(o *Options) { o.Fingerprint, o.PageTokens = fingerprint, g.PageTokens })
			name := s.pages.Page(key)
			if len(g.Tokens) < g.PageTokens {
				name, tails = s.pages.Tail(key), true
				name.Parent = parent // in the place of earlier versions, where it is found without a branch
			}
			from := filepath.Join(goldenDir, g.File)
			place(t, from, filePath(o.Local.Root, name))
			h, err := verifyFile(ctx, vfs.OS, from)
			require.NoError(t, err)
			require.Equal(t, fingerprint, h.Fingerprint)

			var items []pagefile.Media
			for _, m := range g.Media {
				hash := mustKey(t, m.Hash)
				items, media = append(items, pagefile.Media{Offset: g.Start + m.Offset, Hash: hash}), true
			}
			refs := s.Find(ctx, Prompt{Parent: parent, Start: int(g.Start), Tokens: g.Tokens, Media: items}).Exact
			require.Len(t, refs, 1)
			require.Equal(t, key, refs[0].Key)
			require.Equal(t, len(g.Tokens), refs[0].Tokens)
			buf := make([]byte, h.Layout.Size())
			require.NoError(t, s.Read(ctx, refs[0], g.Tokens, h.Layout, Into{Rows: buf}))
			require.Len(t, h.Sections, len(g.Sections))
			for i, want := range g.Sections {
				got := h.Sections[i]
				require.Equal(t, pagefile.Section{Group: want.Group, Layer: want.Layer, Kind: got.Kind, RowBytes: want.RowBytes}, got.Section)
				require.Equal(t, want.Kind, got.Kind.String())
				require.Equal(t, want.Encoding, got.Encoding.String())
				require.Equal(t, want.Rows, hex.EncodeToString(h.Layout.Rows(buf, i)))
				encodings[got.Encoding] = true
			}
		})
	}
	require.True(t, tails && media, "golden pages cover every kind")
	for e := pagefile.Encoding(0); e.Known(); e++ {
		require.True(t, encodings[e], "%v", e)
	}
}

func mustKey(t *testing.T, s string) pagefile.Key {
	t.Helper()
	k, err := pagefile.ParseKey(s)
	require.NoError(t, err)
	return k
}
