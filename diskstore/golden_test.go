package diskstore

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// goldenDir holds pages that an earlier version wrote, and pages.json with their content. The
// files are never written again: every later version has to read them.
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

func goldenPages(t *testing.T) []goldenPage {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(goldenDir, "pages.json"))
	require.NoError(t, err)
	var pages []goldenPage
	require.NoError(t, json.Unmarshal(text, &pages))
	require.NotEmpty(t, pages)
	return pages
}

// TestGoldenPages puts each golden page in its place in a store and reads it.
func TestGoldenPages(t *testing.T) {
	raw, zstd, tails, media := false, false, false, false
	for _, g := range goldenPages(t) {
		t.Run(g.File, func(t *testing.T) {
			fingerprint, key, parent := mustKey(t, g.Fingerprint), mustKey(t, g.Key), mustKey(t, g.Parent)
			o := testOptions(t, func(o *Options) { o.Fingerprint, o.PageTokens = fingerprint, g.PageTokens })
			s := open(t, o)
			name := s.pageName(key)
			if len(g.Tokens) < g.PageTokens {
				name, tails = s.tailName(parent, key), true
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
			refs := s.ChainFrom(ctx, parent, int(g.Start), g.Tokens, items)
			require.Len(t, refs, 1)
			require.Equal(t, key, refs[0].Key)
			require.Equal(t, len(g.Tokens), refs[0].Tokens)
			buf := make([]byte, h.Layout.Size())
			require.NoError(t, s.Read(ctx, refs[0], g.Tokens, h.Layout, buf))
			require.Len(t, h.Sections, len(g.Sections))
			for i, want := range g.Sections {
				got := h.Sections[i]
				require.Equal(t, pagefile.Section{Group: want.Group, Layer: want.Layer, Kind: got.Kind, RowBytes: want.RowBytes}, got.Section)
				require.Equal(t, want.Kind, got.Kind.String())
				require.Equal(t, want.Encoding, got.Encoding.String())
				require.Equal(t, want.Rows, hex.EncodeToString(h.Layout.Rows(buf, i)))
				raw, zstd = raw || got.Encoding == pagefile.EncodingRaw, zstd || got.Encoding == pagefile.EncodingZstd
			}
		})
	}
	require.True(t, raw && zstd && tails && media, "golden pages cover every kind")
}

func mustKey(t *testing.T, s string) pagefile.Key {
	t.Helper()
	k, err := pagefile.ParseKey(s)
	require.NoError(t, err)
	return k
}

// TestWriteGolden adds missing golden pages if KVTIER_WRITE_GOLDEN is set, for the first
// version of a new schema.
func TestWriteGolden(t *testing.T) {
	if os.Getenv("KVTIER_WRITE_GOLDEN") == "" {
		t.Skip("golden pages are written once: set KVTIER_WRITE_GOLDEN to add new ones")
	}
	require.NoError(t, os.MkdirAll(goldenDir, 0o755))
	sections := []pagefile.Section{
		{Group: 0, Layer: 0, Kind: pagefile.KindK, RowBytes: 48}, {Group: 0, Layer: 0, Kind: pagefile.KindV, RowBytes: 48},
		{Group: 1, Layer: 5, Kind: pagefile.KindK, RowBytes: 7}, {Group: 1, Layer: 5, Kind: pagefile.KindV, RowBytes: 1},
	}
	fingerprint := pagefile.Key{0: 0x60, 1: 0x1d, 31: 0xe2}
	cat := pagefile.Media{Offset: 3, Hash: [32]byte{0: 0xca, 31: 0x7}}
	first := []int32{1, 128000, 9906, 0, 1917, 13, -1, 2147483647}
	tail := []int32{578, 4062, 374}
	var pages []goldenPage
	for _, compress := range []bool{false, true} {
		kind := "raw"
		if compress {
			kind = "zstd"
		}
		page := goldenSource(t, fingerprint, 0, first, sections, cat)
		pages = append(pages,
			writeGolden(t, "page-"+kind+".kvp", fingerprint, page, compress),
			writeGolden(t, "tail-"+kind+".kvp", fingerprint,
				goldenSource(t, page.Key(), 8, tail, sections, pagefile.Media{Offset: 1, Hash: [32]byte{1}}, pagefile.Media{Offset: 1, Hash: [32]byte{2}}), compress),
			writeGolden(t, "text-"+kind+".kvp", fingerprint, goldenSource(t, fingerprint, 0, first, sections[:2]), compress))
	}
	text, err := json.MarshalIndent(pages, "", "  ")
	require.NoError(t, err)
	writeNew(t, "pages.json", append(text, '\n'))
}

// goldenSource makes a page with rows that a person can recognize.
func goldenSource(t *testing.T, parent pagefile.Key, start uint32, tokens []int32, sections []pagefile.Section, media ...pagefile.Media) *pagefile.Page {
	l := layoutOf(t, sections, len(tokens))
	p := &pagefile.Page{Parent: parent, Start: start, Tokens: tokens, Media: media, Layout: l, Payload: make([]byte, l.Size())}
	for i := range sections {
		rows := l.Rows(p.Payload, i)
		for at := range rows {
			rows[at] = byte(16*i + at/int(sections[i].RowBytes))
		}
	}
	return p
}

func writeGolden(t *testing.T, file string, fingerprint pagefile.Key, p *pagefile.Page, compress bool) goldenPage {
	t.Helper()
	var c *pagefile.Codec
	if compress {
		var err error
		c, err = pagefile.NewCodec()
		require.NoError(t, err)
	}
	e, err := pagefile.Encode(fingerprint, 8, p, c)
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, e.WriteTo(func(b []byte) error { _, err := out.Write(b); return err }))
	writeNew(t, file, out.Bytes())
	g := goldenPage{
		File: file, Fingerprint: fingerprint.String(), Key: p.Key().String(), Parent: p.Parent.String(),
		Start: p.Start, PageTokens: 8, Tokens: p.Tokens, Media: []goldenMedia{},
	}
	for _, m := range p.Media {
		g.Media = append(g.Media, goldenMedia{Offset: m.Offset, Hash: hex.EncodeToString(m.Hash[:])})
	}
	for i, s := range e.Header.Sections {
		g.Sections = append(g.Sections, goldenSection{
			Group: s.Group, Layer: s.Layer, Kind: s.Kind.String(), RowBytes: s.RowBytes,
			Encoding: s.Encoding.String(), Rows: hex.EncodeToString(p.Layout.Rows(p.Payload, i)),
		})
	}
	return g
}

// writeNew writes a missing file of goldenDir.
func writeNew(t *testing.T, file string, data []byte) {
	t.Helper()
	path := filepath.Join(goldenDir, file)
	require.False(t, strings.Contains(file, "/"))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	require.NoError(t, err, "golden files are never replaced")
	_, err = f.Write(data)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}
