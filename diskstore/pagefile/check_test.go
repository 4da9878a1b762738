package pagefile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/testrows"
)

func aChecker(t testing.TB) *Checker {
	s, err := NewChecker(nil)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// withStored returns the file of a page whose only section, of 200 bytes, is stored as given, with every
// checksum right, as a hostile writer would do.
func withStored(stored []byte) []byte {
	return hostilePage(EncodingZstd, []Section{{Kind: KindK, RowBytes: 40}}, 5, [][]byte{stored})
}

// TestCheckerDecompresses: a Checker finds sections whose stored bytes have the right checksum
// and decompress to other rows.
func TestCheckerDecompresses(t *testing.T) {
	s, c := aChecker(t), theCodec(t)
	rows := bytes.Repeat([]byte("kv cache "), 23)[:200]
	good := c.coder.EncodeZstd(rows)
	file := withStored(good)
	_, err := s.Check(ctx, memBlob(file))
	require.NoError(t, err)
	for what, stored := range map[string][]byte{
		"no zstd":    []byte("no zstd at all"),
		"too few":    c.coder.EncodeZstd(rows[:150]),
		"too many":   c.coder.EncodeZstd(append(bytes.Clone(rows), rows...)),
		"bomb":       c.coder.EncodeZstd(make([]byte, 8<<20))[:100],
		"trailing":   append(bytes.Clone(good), 1, 2, 3),
		"cut":        good[:len(good)-3],
		"two frames": append(c.coder.EncodeZstd(rows[:100]), c.coder.EncodeZstd(rows[100:])...),
	} {
		if len(stored) >= 200 {
			continue // raw would be smaller, so the header would be refused
		}
		file := withStored(stored)
		_, verr := Stream(ctx, memBlob(file), nil)
		require.NoError(t, verr, "%s: checksums are right", what)
		_, err := s.Check(ctx, memBlob(file))
		h, herr := ReadHeader(ctx, memBlob(file))
		require.NoError(t, herr)
		rerr := ReadPayload(ctx, memBlob(file), h, h.All(), c, make([]byte, h.Layout.Size()))
		require.Equal(t, rerr == nil, err == nil, "%s: a checker says %v, a read %v", what, err, rerr)
		if err != nil {
			require.ErrorIs(t, err, ErrDamaged, what)
		}
	}
}

// TestCheckerMemoryIsBounded: a header may claim rows of gigabytes.
func TestCheckerMemoryIsBounded(t *testing.T) {
	c := theCodec(t)
	const raw = 64 << 20
	stored := c.coder.EncodeZstd(make([]byte, raw))
	file := hostilePage(EncodingZstd, []Section{{Kind: KindK, RowBytes: raw / testTokens}}, testTokens, [][]byte{stored})
	s := aChecker(t)
	var err error
	used := testrows.Allocated(func() { _, err = s.Check(ctx, memBlob(file)) })
	require.NoError(t, err)
	require.Less(t, used, uint64(raw/2))
}

// TestCheckerRefusesHugeWindows: a section that needs too much memory is reported neither as
// damaged nor as good.
func TestCheckerRefusesHugeWindows(t *testing.T) {
	// A frame header: magic, a descriptor without content size, a window of
	// 2^31 bytes; then one empty last block.
	stored := binary.LittleEndian.AppendUint32(nil, 0xfd2fb528)
	stored = append(stored, 0x00, 21<<3, 0x01, 0x00, 0x00)
	_, err := aChecker(t).Check(ctx, memBlob(withStored(stored)))
	require.Error(t, err)
	require.False(t, errors.Is(err, ErrDamaged), "%v", err)
	require.ErrorContains(t, err, "128 MiB")
}

// deafBlob fails reads of bytes between from and until.
type deafBlob struct {
	memBlob
	from, until int64
}

func (d deafBlob) ReadAt(ctx context.Context, p []byte, off int64) error {
	if off+int64(len(p)) > d.from && off < d.until {
		return syscall.EIO
	}
	return d.memBlob.ReadAt(ctx, p, off)
}

// TestCheckSectionsGoesOn: damage of one section, and a part of the file that cannot be read,
// do not hide the state of the other sections.
func TestCheckSectionsGoesOn(t *testing.T) {
	l := layoutOf(t, []Section{{Kind: KindK, RowBytes: 5000}, {Kind: KindV, RowBytes: 9000}, {Layer: 1, RowBytes: 70}, {Layer: 2, RowBytes: 70}}, 300)
	p := &Page{Parent: testFingerprint(1), Tokens: prompt(1, 300), Layout: l, Payload: make([]byte, l.Size())}
	fillRows(l, p.Key(), p.Payload)
	file := encodeFile(t, p, 300, false)
	h, err := ReadHeader(ctx, memBlob(file))
	require.NoError(t, err)
	last := len(h.Sections) - 1
	require.Greater(t, h.Sections[1].Offset, int64(StepBytes))
	file[h.Sections[0].Offset+1] ^= 1
	file[h.Sections[last].Offset+h.Sections[last].Stored] ^= 1 // in its padding

	c := aChecker(t)
	_, wrong, err := c.CheckSections(ctx, memBlob(file))
	require.NoError(t, err)
	for i, err := range wrong {
		require.Equal(t, i == 0 || i == last, errors.Is(err, ErrDamaged), "section %d: %v", i, err)
	}

	deaf := deafBlob{file, h.Sections[1].Offset + StepBytes, h.Sections[2].Offset}
	_, wrong, err = c.CheckSections(ctx, deaf)
	require.NoError(t, err)
	require.ErrorIs(t, wrong[0], ErrDamaged)
	require.ErrorIs(t, wrong[1], syscall.EIO)
	require.NoError(t, wrong[2])

	file[len(file)-1] ^= 1
	_, wrong, err = c.CheckSections(ctx, memBlob(file))
	require.ErrorIs(t, err, ErrDamaged)
	require.Len(t, wrong, last+1)
}

// changing is a file whose byte at an offset changes after the first read of that byte.
type changing struct {
	memBlob
	at   int64
	read bool
}

func (c *changing) ReadAt(ctx context.Context, p []byte, off int64) error {
	err := c.memBlob.ReadAt(ctx, p, off)
	if off <= c.at && c.at < off+int64(len(p)) {
		if c.read {
			p[c.at-off] ^= 1
		}
		c.read = true
	}
	return err
}

// TestAHeaderThatChangesIsDamage: a header is checked as part of the file, after it was read.
func TestAHeaderThatChangesIsDamage(t *testing.T) {
	c := aChecker(t)
	file := encodeFile(t, smallPage(t), testTokens, false)
	for _, at := range []int64{0, 200, 4095} {
		_, err := c.Check(ctx, &changing{memBlob: file, at: at})
		require.ErrorIs(t, err, ErrDamaged, "byte %d", at)
		_, _, err = c.CheckSections(ctx, &changing{memBlob: file, at: at})
		require.ErrorIs(t, err, ErrDamaged, "byte %d", at)
	}
}

// TestAnUnreadableByteIsOfOneSection: one byte that cannot be read, in the header, a section,
// the section's padding or the footer, leaves all other sections good.
func TestAnUnreadableByteIsOfOneSection(t *testing.T) {
	c := aChecker(t)
	for _, sections := range [][]Section{largeSections(), {{Kind: KindK, RowBytes: 40}, {Kind: KindV, RowBytes: 40}}} {
		for _, compress := range []bool{false, true} {
			file := encodeFile(t, pageOf(t, sections, testFingerprint(1), prompt(1, testTokens)), testTokens, compress)
			h, err := ReadHeader(ctx, memBlob(file))
			require.NoError(t, err)
			with := func(at int64) ([]error, error) {
				_, wrong, err := c.CheckSections(ctx, deafBlob{file, at, at + 1})
				return wrong, err
			}
			wrong, err := with(0)
			require.ErrorIs(t, err, syscall.EIO)
			require.Nil(t, wrong)
			for bad, s := range h.Sections {
				for _, at := range []int64{s.Offset, s.Offset + s.Stored - 1, AlignUp(s.Offset+s.Stored) - 1} {
					wrong, err := with(at)
					require.NoError(t, err)
					require.Len(t, wrong, len(h.Sections))
					for i, err := range wrong {
						require.Equal(t, i == bad, errors.Is(err, syscall.EIO), "byte %d of section %d, section %d: %v", at, bad, i, err)
						require.Equal(t, i == bad, err != nil, "byte %d of section %d, section %d: %v", at, bad, i, err)
					}
				}
			}
			wrong, err = with(h.FileBytes - 1)
			require.ErrorIs(t, err, syscall.EIO)
			require.Equal(t, make([]error, len(h.Sections)), wrong)
		}
	}
}

// passedOn collects the rows that ReadSections passes on.
type passedOn struct {
	mu   sync.Mutex
	rows map[int][]byte
	fail error // the result of each call
}

func (p *passedOn) use(i int, rows []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rows == nil {
		p.rows = make(map[int][]byte)
	}
	if p.rows[i] != nil {
		return errors.New("a section came twice")
	}
	p.rows[i] = slices.Clone(rows)
	clear(rows) // nobody else needs them
	return p.fail
}

// TestSectionsAreCheckedFirst: of a file with a damaged byte, no section is passed on that
// contains it, and ReadSections fails also when all sections are good.
func TestSectionsAreCheckedFirst(t *testing.T) {
	page := pageOf(t, largeSections(), testFingerprint(1), prompt(1, testTokens))
	for _, compress := range []bool{false, true} {
		file := encodeFile(t, page, testTokens, compress)
		h, err := ReadHeader(ctx, memBlob(file))
		require.NoError(t, err)
		read := func(fail error) (map[int][]byte, error) {
			p := passedOn{fail: fail}
			err := ReadSections(ctx, memBlob(file), h, h.All(), theCodec(t), p.use)
			for i, rows := range p.rows {
				require.Equal(t, page.Layout.Rows(page.Payload, i), rows, "section %d", i)
			}
			return p.rows, err
		}
		rows, err := read(nil)
		require.NoError(t, err)
		require.Len(t, rows, page.Layout.Len())

		for i, s := range h.Sections {
			for _, at := range []int64{s.Offset, s.Offset + s.Stored - 1, AlignUp(s.Offset+s.Stored) - 1} {
				file[at] ^= 1
				rows, err := read(nil)
				require.ErrorIs(t, err, ErrDamaged)
				require.NotContains(t, rows, i)
				file[at] ^= 1
			}
		}
		file[len(file)-1] ^= 1
		_, err = read(nil)
		require.ErrorIs(t, err, ErrDamaged, "the footer")
		file[len(file)-1] ^= 1

		refused := errors.New("no such cell")
		rows, err = read(refused)
		require.ErrorIs(t, err, refused)
		require.Less(t, len(rows), page.Layout.Len(), "the rest is not read")
	}
}

// TestGentleReadsUseOneProcessor: everything runs on the calling goroutine.
func TestGentleReadsUseOneProcessor(t *testing.T) {
	page := pageOf(t, largeSections(), testFingerprint(1), prompt(1, testTokens))
	blob := memBlob(encodeFile(t, page, testTokens, true))
	h, err := ReadHeader(ctx, blob)
	require.NoError(t, err)
	inside := 0 // the race detector finds other goroutines
	require.NoError(t, ReadSections(ctx, blob, h, h.All(), theCodec(t).Gently(), func(int, []byte) error { inside++; return nil }))
	require.Equal(t, page.Layout.Len(), inside)
}
