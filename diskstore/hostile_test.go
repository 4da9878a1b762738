package diskstore

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/internal/testrows"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestATailThatComesDuringARemoval: another process stores a tail while all pages of its model are
// removed. The tail stays, and is found.
func TestATailThatComesDuringARemoval(t *testing.T) {
	for _, moment := range []string{dir.ManifestFile, "tail-"} {
		o := testOptions(t)
		other := open(t, o)
		inj := vfs.Inject(quickFS)
		o2 := o
		o2.FS = inj
		mine := open(t, o2)
		putChain(t, other, prompt(1, testTokens+2))
		var once sync.Once
		inj.Watch(func(op vfs.Op, paths ...string) {
			if op == vfs.OpRemove && regexp.MustCompile("^"+moment).MatchString(filepath.Base(paths[0])) {
				once.Do(func() { putChain(t, other, []int32{5, 6, 7}) })
			}
		})
		_, err := mine.local.purge(ctx, purge{fingerprint: o.Fingerprint, removed: func(tier.Info) {}})
		require.NoError(t, err)
		once.Do(func() { t.Error("the moment did not come") })
		require.NoError(t, other.Close())
		readChain(t, open(t, o), []int32{5, 6, 7, 8}, 3)
	}
}

// TestATailWithoutABranchRemovesNoOther: a disk is full after the tail and before its branch.
func TestATailWithoutABranchRemovesNoOther(t *testing.T) {
	o := testOptions(t)
	inj := vfs.Inject(quickFS)
	o.FS = inj
	s := open(t, o)
	putChain(t, s, []int32{5, 6})
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpCreate}, Path: regexp.MustCompile(`tail-3-`), Err: syscall.ENOSPC})
	require.Error(t, s.Put(ctx, chainOf(t, s, []int32{5, 6, 7})[0]))
	require.NoError(t, s.Close())
	o.FS = quickFS
	readChain(t, open(t, o), []int32{5, 6, 7, 8}, 2)
}

// TestStaleBranchesCostNoTries: after most of many siblings left at once, those that stayed are found.
func TestStaleBranchesCostNoTries(t *testing.T) {
	s := open(t, testOptions(t))
	stored := prompt(1, testTokens)
	for seed := range 40 {
		putChain(t, s, parted(stored, 6, testTokens, seed))
	}
	infos := listAll(t, s.local)
	for _, info := range infos[:len(infos)-1] {
		dropPage(t, s.local, info)
	}
	require.Equal(t, 6, tokensIn(s.Find(ctx, Prompt{Tokens: parted(stored, 6, testTokens, 100)}).Exact))
}

// The tests try every limit of the page format on both sides: as an argument, and in the
// header of a file, which is not trusted. Other tests try the limits of the breaker
// (TestBreaker), quarantine (TestDamageIsQuarantinedAndRepaired), recency
// (TestTouchMovesWhatComesBefore), orphans (TestStaleTemporaryFilesAreCleaned) and free space
// (TestUnlimitedTierKeepsSomeOfTheDiskFree).

func TestLimitOfPageTokens(t *testing.T) {
	o := testOptions(t, func(o *Options) { o.PageTokens = pagefile.MaxTokens })
	require.NoError(t, open(t, o).Close())
	o.PageTokens++
	_, err := Open(ctx, o)
	require.ErrorIs(t, err, ErrOptions)
}

func TestLimitOfMediaInAPut(t *testing.T) {
	s := open(t, testOptions(t))
	media := make([]pagefile.Media, pagefile.MaxMedia+1)
	p := faultPage(t, s.opt.Fingerprint, 0, prompt(1, testTokens))
	p.Media = media
	require.ErrorIs(t, s.Put(ctx, p), pagefile.ErrInvalidPage)
	p.Media = media[:pagefile.MaxMedia]
	fillRows(p.Layout, p.Key(), p.Payload)
	require.NoError(t, s.Put(ctx, p))
	refs := s.Find(ctx, Prompt{Tokens: p.Tokens, Media: p.Media}).Exact
	require.Len(t, refs, 1)
	require.Equal(t, p.Payload, rowsOf(t, s, refs[0], p))
}

func TestLimitOfAManifest(t *testing.T) {
	for _, size := range []int{tier.MaxManifestBytes, tier.MaxManifestBytes + 1} {
		s, o := openNew(t)
		require.NoError(t, s.Close())
		path := filePath(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassManifest})
		text := fileOf(t, path)
		text = append(text, bytes.Repeat([]byte(" "), size-len(text))...)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		tr := dir.New(quickFS, o.Local.Root, dir.Options{Create: true})
		m, err := tier.ReadManifest(ctx, tr, o.Fingerprint)
		if size <= tier.MaxManifestBytes {
			require.NoError(t, err)
			require.Equal(t, o.Identity, m.Identity)
		} else {
			require.ErrorIs(t, err, pagefile.ErrDamaged)
		}
		require.NoError(t, tr.Close())
	}
}

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
				_, _, err := inspect.ReadHeader(ctx, vfs.OS, path, false)
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
