package pagefile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/kvtier/kvtier/diskstore/encoding"
)

/*
A page file, schemas 1 to 3. All integers are little endian.

	offset  bytes  header
	     0      8  magic "\x8bKVPAGE\n"
	     8      4  schema: 3 if a section has an encoding above 15, else 2 if one has an
	               encoding above 1, else 1
	    12      4  flags: bit 0 the page is a tail; all other bits zero
	    16     32  fingerprint
	    48     32  key, = ChainKey(parent, tokens, media)
	    80     32  parent
	   112      4  start: position of the first token
	   116      4  page tokens: tokens in a full page
	   120      4  T: tokens in this page
	   124      4  M: media items
	   128      4  S: sections
	   132      4  H: header bytes, = 152 + 4T + 36M + 40S + 4
	   136      8  file size
	   144      4  P: payload offset, = H rounded up to 4096
	   148      4  zero
	   152     4T  token ids, int32
	             36M  media: offset uint32, content hash 32 bytes
	             40S  section table
	   H-4      4  CRC-32C of bytes 0 … H-5
	     H         zeros up to P

	offset  bytes  section table entry
	     0      2  group
	     2      2  layer
	     4      1  kind: 0 K, 1 V, 2 conv, 3 state, 4 cell,
	               5 window K, 6 window V
	     5      1  encoding: 0 raw, 1 zstd, 2 split; lossy: 16 q8_0, 17 q4_0, 18 int4,
	               of kinds 0 and 1 alone
	     6      2  zero
	     8      4  row bytes
	    12      8  offset in the file, a multiple of 4096
	    20      8  stored bytes
	    28      8  raw bytes, = T × row bytes; row bytes alone of kinds 2, 3, 5, 6
	    36      4  CRC-32C of the stored bytes

	The first section is at P, each next section at the end of the previous
	one rounded up to 4096; bytes between sections are zero. A raw section has
	stored = raw, an encoded one stored < raw. In a file whose sections are all
	raw, the bytes from P to the footer are exactly the Layout's buffer.

	offset  bytes  footer, at the last section's end rounded up to 4096
	     0      8  magic "KVPEND\r\n"
	     8      4  the header's CRC-32C
	    12      4  zero
	    16      8  file size
	    24      4  zero
	    28      4  CRC-32C of bytes 0 … 27

Every byte is under a CRC, or zero and checked to be zero, or fixed by the
formulas above and checked: every single flipped bit and every truncation is
found. Magic, header bytes and their CRC keep their places in every schema, so
that an older reader can distinguish a newer page from a damaged one.

The thread count and the split of layers over devices are not part of a page's
identity: the split changes with free device memory.
*/
const (
	PageMagic   = "\x8bKVPAGE\n"
	SealedMagic = "kvseal1\n" // of files of a team, which package sealed reads
	footerMagic = "KVPEND\r\n"
	Schema      = 1
	SchemaSplit = 2 // of files that programs for schema 1 cannot decode
	SchemaLossy = 3 // of files with a lossy encoding, which programs for schema 2 cannot decode

	flagTail   = 1 << 0
	flagsKnown = flagTail

	fixedBytes  = 152 // header up to the token ids
	mediaBytes  = 36
	tableBytes  = 40 // one entry of the section table
	crcBytes    = 4
	FooterBytes = 32

	maxHeaderBytes = fixedBytes + 4*MaxTokens + mediaBytes*MaxMedia + tableBytes*MaxSections + crcBytes
)

// Encoding is the encoding of a section's rows in the file.
type Encoding = encoding.ID

const (
	EncodingRaw   = encoding.Raw
	EncodingZstd  = encoding.Zstd
	EncodingSplit = encoding.Split
	EncodingQ8    = encoding.Q8_0
	EncodingQ4    = encoding.Q4_0
	EncodingInt4  = encoding.Int4
)

// StoredSection is one entry of a page file's section table.
type StoredSection struct {
	Section
	Encoding Encoding
	Offset   int64 // in the file
	Stored   int64 // bytes in the file
	Raw      int64 // bytes decoded
	CRC      uint32
}

// Header is the content of a page file's header.
type Header struct {
	Fingerprint Key
	Key         Key
	Parent      Key
	Start       uint32
	PageTokens  int
	Tokens      []int32
	Media       []Media
	Sections    []StoredSection
	FileBytes   int64
	Layout      Layout // places the page's sections in Read's buffer

	Crc uint32 // of the encoded header
}

// Tail reports whether the page is shorter than a full one.
func (h *Header) Tail() bool { return len(h.Tokens) < h.PageTokens }

// castagnoli is the CRC-32C table; amd64 and arm64 have an instruction for CRC-32C.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func Checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// headerBytes returns H for these numbers of tokens, media items and sections.
func headerBytes(tokens, media, sections int) int64 {
	return fixedBytes + 4*int64(tokens) + mediaBytes*int64(media) + tableBytes*int64(sections) + crcBytes
}

// payloadOffset returns P.
func (h *Header) payloadOffset() int64 {
	return AlignUp(headerBytes(len(h.Tokens), len(h.Media), len(h.Sections)))
}

// Place assigns the sections' offsets and the file size from the sections' stored sizes.
func (h *Header) Place() {
	end := h.payloadOffset()
	for i := range h.Sections {
		h.Sections[i].Offset = end
		end = AlignUp(end + h.Sections[i].Stored)
	}
	h.FileBytes = end + FooterBytes
}

// Raw reports whether the file's payload equals the layout's buffer.
func (h *Header) Raw() bool {
	return !slices.ContainsFunc(h.Sections, func(s StoredSection) bool { return s.Encoding != EncodingRaw })
}

// Lossy reports whether a section of the page has a lossy encoding.
func (h *Header) Lossy() bool {
	return slices.ContainsFunc(h.Sections, func(s StoredSection) bool { return s.Encoding.Lossy() })
}

// schema returns the schema of a file with these sections.
func (h *Header) schema() uint32 {
	switch {
	case h.Lossy():
		return SchemaLossy
	case slices.ContainsFunc(h.Sections, func(s StoredSection) bool { return s.Encoding > EncodingZstd }):
		return SchemaSplit
	}
	return Schema
}

// Encode returns the header region, payloadOffset bytes, and keeps the region's CRC for the footer.
func (h *Header) Encode() []byte {
	le := binary.LittleEndian
	size := headerBytes(len(h.Tokens), len(h.Media), len(h.Sections))
	buf := make([]byte, 0, AlignUp(size))
	buf = append(buf, PageMagic...)
	buf = le.AppendUint32(buf, h.schema())
	var flags uint32
	if h.Tail() {
		flags |= flagTail
	}
	buf = le.AppendUint32(buf, flags)
	buf = append(buf, h.Fingerprint[:]...)
	buf = append(buf, h.Key[:]...)
	buf = append(buf, h.Parent[:]...)
	buf = le.AppendUint32(buf, h.Start)
	buf = le.AppendUint32(buf, uint32(h.PageTokens))
	buf = le.AppendUint32(buf, uint32(len(h.Tokens)))
	buf = le.AppendUint32(buf, uint32(len(h.Media)))
	buf = le.AppendUint32(buf, uint32(len(h.Sections)))
	buf = le.AppendUint32(buf, uint32(size))
	buf = le.AppendUint64(buf, uint64(h.FileBytes))
	buf = le.AppendUint32(buf, uint32(AlignUp(size)))
	buf = le.AppendUint32(buf, 0)
	for _, t := range h.Tokens {
		buf = le.AppendUint32(buf, uint32(t))
	}
	for _, m := range h.Media {
		buf = le.AppendUint32(buf, m.Offset)
		buf = append(buf, m.Hash[:]...)
	}
	for i := range h.Sections {
		buf = h.Sections[i].appendTo(buf)
	}
	h.Crc = Checksum(buf)
	buf = le.AppendUint32(buf, h.Crc)
	return buf[:cap(buf)][:AlignUp(size)]
}

func (s *StoredSection) appendTo(buf []byte) []byte {
	le := binary.LittleEndian
	buf = le.AppendUint16(buf, s.Group)
	buf = le.AppendUint16(buf, s.Layer)
	buf = append(buf, byte(s.Kind), byte(s.Encoding), 0, 0)
	buf = le.AppendUint32(buf, s.RowBytes)
	buf = le.AppendUint64(buf, uint64(s.Offset))
	buf = le.AppendUint64(buf, uint64(s.Stored))
	buf = le.AppendUint64(buf, uint64(s.Raw))
	return le.AppendUint32(buf, s.CRC)
}

// footer returns the footer of a file whose header has been encoded or decoded.
func (h *Header) footer() []byte {
	le := binary.LittleEndian
	buf := append(make([]byte, 0, FooterBytes), footerMagic...)
	buf = le.AppendUint32(buf, h.Crc)
	buf = le.AppendUint32(buf, 0)
	buf = le.AppendUint64(buf, uint64(h.FileBytes))
	buf = le.AppendUint32(buf, 0)
	return le.AppendUint32(buf, Checksum(buf))
}

// ErrDamaged reports a page whose bytes are not the bytes that were written. The file has been
// moved to quarantine.
var ErrDamaged = errors.New("diskstore: page is damaged")

// ErrMismatch reports a well-formed page other than the requested one: another fingerprint,
// parent, position, tokens or sections.
var ErrMismatch = errors.New("diskstore: page is not the one asked for")

// ErrInvalidPage reports arguments that cannot describe a page.
var ErrInvalidPage = errors.New("diskstore: invalid page")

// Damaged returns an ErrDamaged with a description of the damage.
func Damaged(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrDamaged)...)
}

// Mismatch returns an ErrMismatch with a description of the difference.
func Mismatch(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrMismatch)...)
}
