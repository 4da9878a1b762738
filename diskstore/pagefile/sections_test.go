package pagefile

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

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
