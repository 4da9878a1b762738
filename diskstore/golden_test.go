package diskstore

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
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
	for list := range goldenLists {
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

// goldenLists make the pages of each list of goldenDir.
var goldenLists = map[string]func(t *testing.T) []goldenPage{"pages.json": goldenOfSchema1, "pages-2.json": goldenOfSchema2}

// TestWriteGolden adds missing golden pages if KVTIER_WRITE_GOLDEN is set, for the first
// version of a new schema.
func TestWriteGolden(t *testing.T) {
	if os.Getenv("KVTIER_WRITE_GOLDEN") == "" {
		t.Skip("golden pages are written once: set KVTIER_WRITE_GOLDEN to add new ones")
	}
	require.NoError(t, os.MkdirAll(goldenDir, 0o755))
	for file, pages := range goldenLists {
		if _, err := os.Stat(filepath.Join(goldenDir, file)); err == nil {
			continue
		}
		text, err := json.MarshalIndent(pages(t), "", "  ")
		require.NoError(t, err)
		writeNew(t, file, append(text, '\n'))
	}
}

// goldenFingerprint is that of all golden pages.
var goldenFingerprint = pagefile.Key{0: 0x60, 1: 0x1d, 31: 0xe2}

func goldenOfSchema1(t *testing.T) []goldenPage {
	sections := []pagefile.Section{
		{Group: 0, Layer: 0, Kind: pagefile.KindK, RowBytes: 48}, {Group: 0, Layer: 0, Kind: pagefile.KindV, RowBytes: 48},
		{Group: 1, Layer: 5, Kind: pagefile.KindK, RowBytes: 7}, {Group: 1, Layer: 5, Kind: pagefile.KindV, RowBytes: 1},
	}
	fingerprint := goldenFingerprint
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
			writeGolden(t, "page-"+kind+".kvp", 8, page, compress),
			writeGolden(t, "tail-"+kind+".kvp", 8,
				goldenSource(t, page.Key(), 8, tail, sections, pagefile.Media{Offset: 1, Hash: [32]byte{1}}, pagefile.Media{Offset: 1, Hash: [32]byte{2}}), compress),
			writeGolden(t, "text-"+kind+".kvp", 8, goldenSource(t, fingerprint, 0, first, sections[:2]), compress))
	}
	return pages
}

// goldenOfSchema2 makes a page and a tail whose layers hold numbers of each kind. The tail has too
// few rows for bases.
func goldenOfSchema2(t *testing.T) []goldenPage {
	const tokens, channels = 32, 24
	var sections []pagefile.Section
	for layer, bytes := range []uint32{2, 2, 4, 4} { // f16, bf16, f32, f32 from bf16
		for _, kind := range []pagefile.Kind{pagefile.KindK, pagefile.KindV} {
			sections = append(sections, pagefile.Section{Layer: uint16(layer), Kind: kind, RowBytes: bytes * channels})
		}
	}
	sections = append(sections, pagefile.Section{Layer: 4, Kind: pagefile.KindK, RowBytes: 40})  // repeats: zstd
	sections = append(sections, pagefile.Section{Layer: 4, Kind: pagefile.KindV, RowBytes: 120}) // random: raw
	page := goldenNumbers(t, goldenFingerprint, 0, prompt(1, tokens), sections)
	return []goldenPage{
		writeGolden(t, "page-split.kvp", tokens, page, true),
		writeGolden(t, "tail-split.kvp", tokens, goldenNumbers(t, page.Key(), tokens, prompt(2, 15), sections), true),
	}
}

// goldenNumbers makes a page of the sections of goldenOfSchema2.
func goldenNumbers(t *testing.T, parent pagefile.Key, start uint32, tokens []int32, sections []pagefile.Section) *pagefile.Page {
	rng := rand.New(rand.NewPCG(uint64(start), 2))
	p := goldenSource(t, parent, start, tokens, sections, pagefile.Media{Offset: 2, Hash: [32]byte{0: 0xd0}})
	for i, s := range sections {
		rows := p.Layout.Rows(p.Payload, i)
		for at := 0; at < len(rows); {
			channel := float64(at % int(s.RowBytes))
			bits := math.Float32bits(float32(rng.NormFloat64()*math.Exp(channel/9-4) + 0.01))
			switch s.Layer {
			case 0: // f16: of the sizes in use all are normal
				at += 2
				binary.LittleEndian.PutUint16(rows[at-2:], uint16(bits>>16&0x8000|bits>>13&0x7fff-(127-15)<<10&0x7fff))
			case 1:
				at += 2
				binary.LittleEndian.PutUint16(rows[at-2:], uint16(bits>>16))
			case 2:
				at += 4
				binary.LittleEndian.PutUint32(rows[at-4:], bits)
			case 3:
				at += 4
				binary.LittleEndian.PutUint32(rows[at-4:], bits&^0xffff)
			default:
				if s.Kind == pagefile.KindV {
					rows[at] = byte(rng.Uint32())
				}
				at++
			}
		}
	}
	return p
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

func writeGolden(t *testing.T, file string, pageTokens int, p *pagefile.Page, compress bool) goldenPage {
	t.Helper()
	var c *pagefile.Codec
	if compress {
		var err error
		c, err = pagefile.NewCodec()
		require.NoError(t, err)
	}
	e, err := pagefile.Encode(goldenFingerprint, pageTokens, p, c)
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, e.WriteTo(func(b []byte) error { _, err := out.Write(b); return err }))
	writeNew(t, file, out.Bytes())
	g := goldenPage{
		File: file, Fingerprint: goldenFingerprint.String(), Key: p.Key().String(), Parent: p.Parent.String(),
		Start: p.Start, PageTokens: pageTokens, Tokens: p.Tokens, Media: []goldenMedia{},
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
