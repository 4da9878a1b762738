package diskstore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/internal/testrows"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// headerAllowance bounds the memory for the largest header, in a file of the necessary size:
// the header's region and its decoded form.
const headerAllowance = 6 << 20

// TestAbsurdFiles reads files that claim to be enormous, as pages, by name and as tools do. No
// read takes more memory than the header.
func TestAbsurdFiles(t *testing.T) {
	s, o := openNew(t)
	tokens := prompt(1, testTokens)
	p := faultPage(t, s.opt.Fingerprint, 0, tokens)
	path := filePath(o.Local.Root, s.pages.Page(p.Key()))
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	huge := func(header []byte, size int64) func(t *testing.T) {
		return func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, header, 0o600))
			if err := os.Truncate(path, size); err != nil { // sparse
				t.Skipf("no file of %d bytes here: %v", size, err)
			}
		}
	}
	everything, everythingBytes := headerOn(pagefile.MaxTokens, pagefile.MaxTokens, pagefile.MaxMedia, manySections(pagefile.MaxSections))
	rows, rowsBytes := headerOn(pagefile.MaxTokens, pagefile.MaxTokens, 0, []pagefile.Section{{RowBytes: pagefile.MaxLayoutBytes / pagefile.MaxTokens}})
	for name, write := range map[string]func(t *testing.T){
		"empty":                huge(nil, 0),
		"a terabyte of zeros":  huge(nil, 1<<40),
		"only a magic":         huge([]byte(pagefile.PageMagic), 1<<40),
		"everything at limits": huge(everything, everythingBytes),
		"64 GiB of rows":       huge(rows, rowsBytes),
		"cut after its header": huge(everything, int64(len(everything))),
	} {
		t.Run(name, func(t *testing.T) {
			ref := Ref{Key: p.Key(), Parent: p.Parent, Tokens: testTokens, Stored: testTokens, Tier: tier.Local}
			buf := make([]byte, p.Layout.Size())
			write(t)
			used := testrows.Allocated(func() {
				_, err := inspect.Header(vfs.OS, path)
				if err != nil {
					require.ErrorIs(t, err, pagefile.ErrDamaged)
				}
			})
			require.LessOrEqual(t, used, uint64(headerAllowance))
			used = testrows.Allocated(func() { require.Error(t, s.Read(ctx, ref, tokens, p.Layout, Into{Rows: buf})) })
			require.LessOrEqual(t, used, uint64(headerAllowance))
			used = testrows.Allocated(func() { require.NoError(t, s.Put(ctx, p)) })
			require.LessOrEqual(t, used, uint64(headerAllowance))
			if name != "64 GiB of rows" && name != "everything at limits" {
				require.Equal(t, testTokens, tokensIn(s.Find(ctx, Prompt{Tokens: tokens}).Exact))
			}
			removed, err := s.disk.Remove(ctx, tier.Info{Name: s.pages.Page(p.Key())})
			require.NoError(t, err)
			require.True(t, removed)
		})
	}
}

// manySections returns n sections of one byte per row.
func manySections(n int) []pagefile.Section {
	sections := make([]pagefile.Section, n)
	for i := range sections {
		sections[i] = pagefile.Section{Group: uint16(i >> 8), Layer: uint16(i & 0xff), RowBytes: 1}
	}
	return sections
}

// headerOn returns the encoded header of a page of the given shape, which may be impossible,
// and the size of its file.
func headerOn(tokens, pageTokens, media int, sections []pagefile.Section) ([]byte, int64) {
	h := &pagefile.Header{Fingerprint: testFingerprint(1), PageTokens: pageTokens, Tokens: make([]int32, tokens), Media: make([]pagefile.Media, media)}
	h.Key = pagefile.ChainKey(h.Parent, h.Tokens, h.Media)
	for _, s := range sections {
		raw := int64(tokens) * int64(s.RowBytes)
		h.Sections = append(h.Sections, pagefile.StoredSection{Section: s, Raw: raw, Stored: raw})
	}
	h.Place()
	return h.Encode(), h.FileBytes
}
