package pagefile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func aSweeper(t testing.TB) *Sweeper {
	s, err := NewSweeper(nil)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func TestSweepFindsEveryBitAndTruncation(t *testing.T) {
	s := aSweeper(t)
	for _, compress := range []bool{false, true} {
		file := encodeFile(t, smallPage(t), testTokens, compress)
		for at := range file {
			file[at] ^= 1 << (at % 8)
			_, err := s.Sweep(ctx, memBlob(file))
			require.ErrorIs(t, err, ErrDamaged, "bit of byte %d", at)
			file[at] ^= 1 << (at % 8)
			_, err = s.Sweep(ctx, memBlob(file[:at]))
			require.ErrorIs(t, err, ErrDamaged, "truncation to %d", at)
		}
		_, err := s.Sweep(ctx, memBlob(file))
		require.NoError(t, err, "a sweeper goes on after damage")
	}
}

// withStored returns a page file whose first section is replaced by stored,
// with every checksum right, as a hostile writer would make it.
func withStored(t testing.TB, stored []byte) []byte {
	t.Helper()
	p := smallPage(t.(*testing.T))
	h, err := ReadHeader(ctx, memBlob(encodeFile(t, p, testTokens, true)))
	require.NoError(t, err)
	first := &h.Sections[0]
	require.Equal(t, EncodingZstd, first.Encoding)
	first.Stored, first.CRC = int64(len(stored)), Checksum(stored)
	for i := range h.Sections[1:] {
		s := &h.Sections[1+i]
		*s = StoredSection{Section: s.Section, Raw: s.Raw, Stored: s.Raw, CRC: Checksum(h.Layout.Rows(p.Payload, 1+i))}
	}
	h.Place()
	e := &Encoded{Header: h, head: h.Encode(), body: [][]byte{stored, h.Layout.Rows(p.Payload, 1)}}
	e.foot = h.Footer()
	var file bytes.Buffer
	require.NoError(t, e.WriteTo(func(b []byte) error { _, err := file.Write(b); return err }))
	return file.Bytes()
}

// TestSweepDecompresses: checksums of the stored bytes say nothing about what
// they decompress to.
func TestSweepDecompresses(t *testing.T) {
	s, c := aSweeper(t), theCodec(t)
	rows := bytes.Repeat([]byte("kv cache "), 23)[:200]
	good := c.Encode(rows)
	file := withStored(t, good)
	_, err := s.Sweep(ctx, memBlob(file))
	require.NoError(t, err)
	for what, stored := range map[string][]byte{
		"no zstd":    []byte("no zstd at all"),
		"too few":    c.Encode(rows[:150]),
		"too many":   c.Encode(append(bytes.Clone(rows), rows...)),
		"bomb":       c.enc.EncodeAll(make([]byte, 8<<20), nil)[:100],
		"trailing":   append(bytes.Clone(good), 1, 2, 3),
		"cut":        good[:len(good)-3],
		"two frames": append(c.Encode(rows[:100]), c.Encode(rows[100:])...),
	} {
		if len(stored) >= 200 {
			continue // raw would be smaller, so the header would be refused
		}
		file := withStored(t, stored)
		_, verr := StreamPage(ctx, memBlob(file), nil)
		require.NoError(t, verr, "%s: checksums are right", what)
		_, err := s.Sweep(ctx, memBlob(file))
		h, herr := ReadHeader(ctx, memBlob(file))
		require.NoError(t, herr)
		rerr := ReadPayload(ctx, memBlob(file), h, h.All(), c, make([]byte, h.Layout.Size()))
		require.Equal(t, rerr == nil, err == nil, "%s: a sweep says %v, a read %v", what, err, rerr)
		if err != nil {
			require.ErrorIs(t, err, ErrDamaged, what)
		}
	}
}

// TestSweepMemoryIsBounded: a header may claim rows of gigabytes.
func TestSweepMemoryIsBounded(t *testing.T) {
	c := theCodec(t)
	const raw = 64 << 20
	stored := c.enc.EncodeAll(make([]byte, raw), nil)
	l := layoutOf(t, []Section{{Kind: KindK, RowBytes: raw / testTokens}}, testTokens)
	h := &Header{
		Fingerprint: testFingerprint(1), Parent: testFingerprint(1), PageTokens: testTokens, Tokens: prompt(1, testTokens), Layout: l,
		Sections: []StoredSection{{Section: l.Sections()[0], Encoding: EncodingZstd, Stored: int64(len(stored)), Raw: raw, CRC: Checksum(stored)}},
	}
	h.Key = ChainKey(h.Parent, h.Tokens, nil)
	h.Place()
	e := &Encoded{Header: h, head: h.Encode(), body: [][]byte{stored}}
	e.foot = h.Footer()
	var file bytes.Buffer
	require.NoError(t, e.WriteTo(func(b []byte) error { _, err := file.Write(b); return err }))
	s := aSweeper(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := s.Sweep(ctx, memBlob(file.Bytes()))
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(raw/2))
}

// TestSweepRefusesHugeWindows: what would need too much memory is not called
// damaged, and not good.
func TestSweepRefusesHugeWindows(t *testing.T) {
	// A frame header: magic, a descriptor without content size, a window of
	// 2^31 bytes; then one empty last block.
	stored := binary.LittleEndian.AppendUint32(nil, 0xfd2fb528)
	stored = append(stored, 0x00, 21<<3, 0x01, 0x00, 0x00)
	_, err := aSweeper(t).Sweep(ctx, memBlob(withStored(t, stored)))
	require.Error(t, err)
	require.False(t, errors.Is(err, ErrDamaged), "%v", err)
	require.ErrorContains(t, err, "128 MiB")
}
