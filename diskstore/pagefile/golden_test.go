package pagefile_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// The second reader follows docs/page-format.md alone, to show that the document is complete.
// The reader shares no code with the package.

// secondPage is a page in the form of the lists of testdata/golden, as the second reader decodes it.
type secondPage struct {
	File        string          `json:"file"`
	Fingerprint string          `json:"fingerprint"`
	Key         string          `json:"key"`
	Parent      string          `json:"parent"`
	Start       uint32          `json:"start"`
	PageTokens  uint32          `json:"page_tokens"`
	Tokens      []int32         `json:"tokens"`
	Media       []secondMedia   `json:"media"`
	Sections    []secondSection `json:"sections"`
}

type secondMedia struct {
	Offset uint32 `json:"offset"`
	Hash   string `json:"hash"`
}

type secondSection struct {
	Group    uint16 `json:"group"`
	Layer    uint16 `json:"layer"`
	Kind     string `json:"kind"`
	RowBytes uint32 `json:"row_bytes"`
	Encoding string `json:"encoding"`
	Rows     string `json:"rows"`
}

// source is a file in memory.
type source struct{ *bytes.Reader }

func (s source) ReadAt(_ context.Context, p []byte, off int64) error {
	_, err := s.Reader.ReadAt(p, off)
	return err
}

// readFirst decodes a page file with the package.
func readFirst(t *testing.T, file []byte) secondPage {
	from := source{bytes.NewReader(file)}
	h, err := pagefile.ReadHeader(t.Context(), from)
	require.NoError(t, err)
	codec, err := pagefile.NewCodec()
	require.NoError(t, err)
	rows := make([]byte, h.Layout.Size())
	require.NoError(t, pagefile.ReadPayload(t.Context(), from, h, h.All(), codec, rows))
	page := secondPage{
		Fingerprint: h.Fingerprint.String(), Key: h.Key.String(), Parent: h.Parent.String(),
		Start: h.Start, PageTokens: uint32(h.PageTokens), Tokens: h.Tokens, Media: []secondMedia{},
	}
	for _, m := range h.Media {
		page.Media = append(page.Media, secondMedia{m.Offset, hex.EncodeToString(m.Hash[:])})
	}
	for i, s := range h.Sections {
		page.Sections = append(page.Sections, secondSection{
			s.Group, s.Layer, s.Kind.String(), s.RowBytes, s.Encoding.String(), hex.EncodeToString(h.Layout.Rows(rows, i)),
		})
	}
	return page
}

// TestSecondReaderReadsTheGoldenPages, and so does the first one: pages of schema 1 and 2. The files are
// never written again: every later version has to read them.
func TestSecondReaderReadsTheGoldenPages(t *testing.T) {
	tails, media, encodings := false, false, make(map[string]bool)
	var pages []secondPage
	for _, list := range []string{"pages.json", "pages-2.json"} {
		text, err := os.ReadFile(filepath.Join("../testdata/golden", list))
		require.NoError(t, err)
		var some []secondPage
		require.NoError(t, json.Unmarshal(text, &some))
		pages = append(pages, some...)
	}
	for _, want := range pages {
		file, err := os.ReadFile(filepath.Join("../testdata/golden", want.File))
		require.NoError(t, err)
		got, err := readSecond(file)
		require.NoError(t, err, want.File)
		got.File = want.File
		require.Equal(t, want, got)
		first := readFirst(t, file)
		first.File = want.File
		require.Equal(t, want, first)
		tails, media = tails || len(want.Tokens) < int(want.PageTokens), media || len(want.Media) > 0
		for _, s := range want.Sections {
			encodings[s.Encoding] = true
		}

		// The second reader finds damage as well: one bit of each byte of the header and the
		// footer, and of some bytes between.
		step := 1
		for at := 0; at < len(file); at += step {
			if step = 13; at < 1024 || at >= len(file)-40 {
				step = 1
			}
			file[at] ^= 1 << (at % 8)
			_, err := readSecond(file)
			require.Error(t, err, "%s: byte %d", want.File, at)
			file[at] ^= 1 << (at % 8)
		}
	}
	require.True(t, tails && media, "golden pages cover every kind")
	for e := pagefile.Encoding(0); e.Known(); e++ {
		require.True(t, encodings[e.String()], "%v", e)
	}
}

// fields reads little-endian integers one after another.
type fields struct{ p []byte }

func (f *fields) take(n uint64) []byte {
	b := f.p[:n]
	f.p = f.p[n:]
	return b
}
func (f *fields) u8() uint8   { return f.take(1)[0] }
func (f *fields) u16() uint16 { return binary.LittleEndian.Uint16(f.take(2)) }
func (f *fields) u32() uint32 { return binary.LittleEndian.Uint32(f.take(4)) }
func (f *fields) u64() uint64 { return binary.LittleEndian.Uint64(f.take(8)) }
func (f *fields) hex() string { return hex.EncodeToString(f.take(32)) }

func crc32c(p []byte) uint32 { return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)) }

func up4096(n uint64) uint64 { return (n + 4095) / 4096 * 4096 }

func zero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// tableEntry is the part of a section table's entry that gives the place of the rows.
type tableEntry struct {
	encoding            uint8
	offset, stored, raw uint64
	crc                 uint32
}

// readSecond decodes a page file.
func readSecond(file []byte) (secondPage, error) {
	var page secondPage
	size := uint64(len(file))
	if size < 4096+32 || string(file[:8]) != "\x8bKVPAGE\n" {
		return page, errors.New("not a page")
	}
	headerBytes := uint64(binary.LittleEndian.Uint32(file[132:]))
	if headerBytes < 156 || up4096(headerBytes) > size {
		return page, errors.New("header size")
	}
	headerCRC := crc32c(file[:headerBytes-4])
	if binary.LittleEndian.Uint32(file[headerBytes-4:]) != headerCRC {
		return page, errors.New("header checksum")
	}
	f := &fields{file[8:headerBytes]}
	schema, flags := f.u32(), f.u32()
	if schema < 1 || schema > 2 {
		return page, errors.New("another schema")
	}
	page.Fingerprint, page.Key, page.Parent = f.hex(), f.hex(), f.hex()
	page.Start, page.PageTokens = f.u32(), f.u32()
	tokens, media, sections := f.u32(), f.u32(), f.u32()
	f.u32() // header bytes
	fileBytes, payload, reserved := f.u64(), uint64(f.u32()), f.u32()
	if tokens < 1 || tokens > page.PageTokens || page.PageTokens > 1<<16 || media > 1<<12 || sections < 1 || sections > 1<<13 ||
		headerBytes != 152+4*uint64(tokens)+36*uint64(media)+40*uint64(sections)+4 {
		return page, errors.New("counts")
	}
	tail := uint32(0)
	if tokens < page.PageTokens {
		tail = 1
	}
	if flags != tail || fileBytes != size || payload != up4096(headerBytes) || reserved != 0 || page.Start%page.PageTokens != 0 ||
		!zero(file[headerBytes:payload]) {
		return page, errors.New("header fields")
	}
	hash := sha256.New()
	parent, _ := hex.DecodeString(page.Parent)
	hash.Write(parent)
	hash.Write(f.p[:4*tokens+36*media])
	hash.Write(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, tokens), media))
	if hex.EncodeToString(hash.Sum(nil)) != page.Key {
		return page, errors.New("key")
	}
	for range tokens {
		page.Tokens = append(page.Tokens, int32(f.u32()))
	}
	page.Media = []secondMedia{}
	for range media {
		page.Media = append(page.Media, secondMedia{Offset: f.u32(), Hash: f.hex()})
	}
	foot, err := page.readSections(f, file, payload, int(sections), schema)
	if err != nil {
		return page, err
	}
	return page, readFooter(foot, headerCRC, size)
}

// readSections decodes the section table and the sections, which begin at byte at. It returns the
// bytes after them.
func (page *secondPage) readSections(f *fields, file []byte, at uint64, sections int, schema uint32) (rest []byte, err error) {
	size, needed := uint64(len(file)), uint32(1)
	for range sections {
		section, entry, err := readEntry(f)
		if err != nil {
			return nil, err
		}
		if entry.encoding > 1 {
			needed = 2
		}
		if entry.offset != at || entry.stored > size || at+up4096(entry.stored)+32 > size || entry.raw != uint64(len(page.Tokens))*uint64(section.RowBytes) {
			return nil, errors.New("section table")
		}
		if !zero(file[at+entry.stored : at+up4096(entry.stored)]) {
			return nil, errors.New("padding")
		}
		rows, err := readRows(file[at:at+entry.stored], entry)
		if err != nil {
			return nil, err
		}
		section.Rows = hex.EncodeToString(rows)
		page.Sections = append(page.Sections, section)
		at += up4096(entry.stored)
	}
	if schema != needed {
		return nil, errors.New("schema of other encodings")
	}
	return file[at:], nil
}

// readEntry decodes one entry of the section table.
func readEntry(f *fields) (secondSection, tableEntry, error) {
	s := secondSection{Group: f.u16(), Layer: f.u16()}
	kind, encoding, reserved := f.u8(), f.u8(), f.u16()
	s.RowBytes = f.u32()
	e := tableEntry{encoding: encoding, offset: f.u64(), stored: f.u64(), raw: f.u64(), crc: f.u32()}
	if kind > 1 || encoding > 2 || reserved != 0 || s.RowBytes == 0 {
		return s, e, errors.New("table entry")
	}
	s.Kind = [...]string{"K", "V"}[kind]
	s.Encoding = [...]string{"raw", "zstd", "split"}[encoding]
	return s, e, nil
}

// readRows checks and decodes a section.
func readRows(stored []byte, e tableEntry) ([]byte, error) {
	if crc32c(stored) != e.crc {
		return nil, errors.New("section checksum")
	}
	rows := stored
	switch e.encoding {
	case 2:
		if e.stored >= e.raw {
			return nil, errors.New("section is not smaller")
		}
		return readSplit(stored, int(e.raw))
	case 1:
		dec, err := zstd.NewReader(nil, zstd.WithDecoderMaxWindow(8<<20), zstd.WithDecoderMaxMemory(max(e.raw, 8<<20)))
		if err != nil {
			return nil, err
		}
		defer dec.Close()
		if rows, err = dec.DecodeAll(stored, nil); err != nil {
			return nil, err
		}
	}
	if uint64(len(rows)) != e.raw {
		return nil, fmt.Errorf("section is %d bytes", len(rows))
	}
	return rows, nil
}

// readFooter checks the bytes after the last section.
func readFooter(foot []byte, headerCRC uint32, size uint64) error {
	if len(foot) != 32 || string(foot[:8]) != "KVPEND\r\n" {
		return errors.New("no footer")
	}
	f := &fields{foot[8:]}
	crc, zero1, fileBytes, zero2, sum := f.u32(), f.u32(), f.u64(), f.u32(), f.u32()
	if crc != headerCRC || zero1 != 0 || fileBytes != size || zero2 != 0 || sum != crc32c(foot[:28]) {
		return errors.New("footer")
	}
	return nil
}
