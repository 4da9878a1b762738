package pagefile

import (
	"encoding/binary"
	"math"
)

// headerSize returns the bytes of a file's header region, padding included, from the file's first fixedBytes
// bytes and its true size. The result bounds the read that precedes the check of the checksum.
func headerSize(fixed []byte, fileBytes int64) (int64, error) {
	if len(fixed) < fixedBytes {
		return 0, Damaged("file is %d bytes, shorter than a header", fileBytes)
	}
	if string(fixed[:8]) == SealedMagic {
		return 0, Mismatch("the file is sealed with the key of a team, which OLLAMA_KV_TIER_KEY_FILE has to name")
	}
	if string(fixed[:8]) != PageMagic {
		return 0, Damaged("magic is %q", fixed[:8])
	}
	size := int64(binary.LittleEndian.Uint32(fixed[132:]))
	if size < fixedBytes+crcBytes || size > maxHeaderBytes || AlignUp(size) > fileBytes {
		return 0, Damaged("header says it is %d bytes in a file of %d", size, fileBytes)
	}
	return AlignUp(size), nil
}

// decodeHeader parses and checks a header region of exactly headerSize bytes, of a file of
// fileBytes bytes. In the returned Header, every relation between fields that the format fixes
// holds. Besides region, decodeHeader needs less memory than the file has bytes.
func decodeHeader(region []byte, fileBytes int64) (*Header, error) {
	padded, err := headerSize(region, fileBytes)
	if err != nil {
		return nil, err
	}
	if int64(len(region)) != padded {
		return nil, Damaged("header region is %d bytes, want %d", len(region), padded)
	}
	le := binary.LittleEndian
	size := int(le.Uint32(region[132:]))
	crc := le.Uint32(region[size-crcBytes:])
	if sum := Checksum(region[:size-crcBytes]); sum != crc {
		return nil, Damaged("header checksum is %08x, want %08x", sum, crc)
	}
	schema := le.Uint32(region[8:])
	if schema < Schema || schema > SchemaLossy {
		return nil, Mismatch("page has schema %d, this program reads %d to %d", schema, Schema, SchemaLossy)
	}
	if !allZero(region[size:]) {
		return nil, Damaged("padding after the header is not zero")
	}
	// Each section begins at a new multiple of PageAlign, and a table entry decodes to fewer bytes than that.
	if sections := int64(le.Uint32(region[128:])); padded+sections*PageAlign+FooterBytes > fileBytes {
		return nil, Damaged("header counts %d sections in a file of %d bytes", sections, fileBytes)
	}
	h := &Header{
		Fingerprint: Key(region[16:48]),
		Key:         Key(region[48:80]),
		Parent:      Key(region[80:112]),
		Start:       le.Uint32(region[112:]),
		FileBytes:   int64(le.Uint64(region[136:])),
		Crc:         crc,
	}
	if err := h.decodeLists(region[:size]); err != nil {
		return nil, err
	}
	if err := h.check(le.Uint32(region[12:]), le.Uint32(region[144:]), le.Uint32(region[148:]), fileBytes); err != nil {
		return nil, err
	}
	if want := h.schema(); schema != want {
		return nil, Damaged("schema is %d, want %d for these encodings", schema, want)
	}
	return h, nil
}

// decodeLists fills in the tokens, media and section table from a header without padding.
// Counts are checked against the header's size before any allocation.
func (h *Header) decodeLists(header []byte) error {
	le := binary.LittleEndian
	pageTokens, tokens := le.Uint32(header[116:]), le.Uint32(header[120:])
	media, sections := le.Uint32(header[124:]), le.Uint32(header[128:])
	if pageTokens > MaxTokens || tokens < 1 || tokens > pageTokens || media > MaxMedia || sections > MaxSections ||
		headerBytes(int(tokens), int(media), int(sections)) != int64(len(header)) {
		return Damaged("header counts %d tokens of %d, %d media, %d sections in %d bytes",
			tokens, pageTokens, media, sections, len(header))
	}
	h.PageTokens = int(pageTokens)
	p := header[fixedBytes:]
	h.Tokens = make([]int32, tokens)
	for i := range h.Tokens {
		h.Tokens[i] = int32(le.Uint32(p))
		p = p[4:]
	}
	h.Media = make([]Media, media)
	for i := range h.Media {
		h.Media[i] = Media{Offset: le.Uint32(p), Hash: [32]byte(p[4:mediaBytes])}
		p = p[mediaBytes:]
	}
	h.Sections = make([]StoredSection, sections)
	for i := range h.Sections {
		if p[6] != 0 || p[7] != 0 {
			return Damaged("reserved bytes of section %d are not zero", i)
		}
		h.Sections[i] = StoredSection{
			Section: Section{
				Group: le.Uint16(p), Layer: le.Uint16(p[2:]), Kind: Kind(p[4]), RowBytes: le.Uint32(p[8:]),
			},
			Encoding: Encoding(p[5]),
			Offset:   int64(le.Uint64(p[12:])),
			Stored:   int64(le.Uint64(p[20:])),
			Raw:      int64(le.Uint64(p[28:])),
			CRC:      le.Uint32(p[36:]),
		}
		p = p[tableBytes:]
	}
	return nil
}

// check verifies every relation between the header's fields.
func (h *Header) check(flags, payload, reserved uint32, fileBytes int64) error {
	wantFlags := uint32(0)
	if h.Tail() {
		wantFlags = flagTail
	}
	switch {
	case flags != wantFlags || reserved != 0:
		return Damaged("flags are %#x, reserved %#x", flags, reserved)
	case int64(payload) != h.payloadOffset():
		return Damaged("payload offset is %d, want %d", payload, h.payloadOffset())
	case h.FileBytes != fileBytes:
		return Damaged("header says the file is %d bytes, it is %d", h.FileBytes, fileBytes)
	case h.Start%uint32(h.PageTokens) != 0 || uint64(h.Start)+uint64(len(h.Tokens)) > math.MaxUint32:
		return Damaged("start %d is not a page boundary", h.Start)
	case h.Key != ChainKey(h.Parent, h.Tokens, h.Media):
		return Damaged("key %v does not follow from parent and tokens", h.Key)
	}
	if err := checkMedia(h.Media, len(h.Tokens)); err != nil {
		return Damaged("%v", err)
	}
	return h.checkSections()
}

// checkSections verifies the section table and computes the layout.
func (h *Header) checkSections() error {
	sections := make([]Section, len(h.Sections))
	for i := range h.Sections {
		sections[i] = h.Sections[i].Section
	}
	layout, err := NewLayout(sections, len(h.Tokens))
	if err != nil {
		return Damaged("%v", err)
	}
	h.Layout = layout
	end := h.payloadOffset()
	for i := range h.Sections {
		s := &h.Sections[i]
		rawOK := s.Encoding == EncodingRaw && s.Stored == s.Raw
		smallOK := s.Encoding != EncodingRaw && s.Encoding.Known() && s.Stored > 0 && s.Stored < s.Raw &&
			(!s.Encoding.Lossy() || s.Kind == KindK || s.Kind == KindV)
		if s.Raw != s.Bytes(len(h.Tokens)) || !rawOK && !smallOK {
			return Damaged("section %d stores %d of %d bytes in encoding %d", i, s.Stored, s.Raw, s.Encoding)
		}
		if s.Offset != end {
			return Damaged("section %d is at %d, want %d", i, s.Offset, end)
		}
		end = AlignUp(end + s.Stored)
	}
	if end+FooterBytes != h.FileBytes {
		return Damaged("sections end at %d in a file of %d bytes", end, h.FileBytes)
	}
	return nil
}
