package inspect

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/internal/testrows"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// exportOf returns an archive of the conversation that ends with a page.
func exportOf(t testing.TB, o diskstore.Options, last *pagefile.Page) []byte {
	t.Helper()
	r := rootsOf(t, o)
	chain, err := r.Chain(ctx, storedAt(o, last))
	require.NoError(t, err)
	var out bytes.Buffer
	_, err = r.Export(ctx, chain, &out, func(int64) {})
	require.NoError(t, err)
	return out.Bytes()
}

func importTo(ctx context.Context, o diskstore.Options, archive []byte) (Imported, error) {
	return Import(ctx, ImportOptions{Open: storeAt(o)}, bytes.NewReader(archive), int64(len(archive)))
}

// storeAt opens a store for an archive with the options o.
func storeAt(o diskstore.Options) func(context.Context, pagefile.Key, tier.Manifest) (PageStore, error) {
	return func(ctx context.Context, fp pagefile.Key, m tier.Manifest) (PageStore, error) {
		o := o
		o.Fingerprint, o.Identity, o.PageTokens = fp, m.Identity, m.PageTokens
		return diskstore.Open(ctx, o)
	}
}

func TestExportAndImport(t *testing.T) {
	from, pages := stored(t)
	for name, compress := range map[string]bool{"raw": false, "zstd": true} {
		for last, want := range map[int]int{2: 2*storetest.Tokens + 3, 1: 2 * storetest.Tokens, 4: storetest.Tokens + 5} {
			t.Run(fmt.Sprint(name, last), func(t *testing.T) {
				to := testOptions(t, func(o *diskstore.Options) { o.Compress = compress })
				done, err := importTo(ctx, to, exportOf(t, from, pages[last]))
				require.NoError(t, err)
				require.Equal(t, want, done.Tokens)
				require.Equal(t, from.Identity, done.Manifest.Identity)
				s := open(t, to)
				seed := 1
				if last == 4 {
					seed = 2
				}
				readChain(t, s, testrows.Prompt(seed, 3*storetest.Tokens), want)
				requireExact(t, s, to)
			})
		}
	}
}

// TestExportOfWhatIsNotWhole: a conversation whose first page is missing or damaged is not exported.
func TestExportOfWhatIsNotWhole(t *testing.T) {
	o, pages := stored(t)
	r := rootsOf(t, o)
	chain, err := r.Chain(ctx, storedAt(o, pages[2]))
	require.NoError(t, err)
	require.Len(t, chain, 3)
	storetest.FlipAt(t, chain[1].Path, 4200)
	_, err = r.Export(ctx, chain, io.Discard, func(int64) {})
	require.ErrorIs(t, err, pagefile.ErrDamaged)
	require.NoError(t, os.Remove(chain[1].Path))
	_, err = r.Export(ctx, chain, io.Discard, func(int64) {})
	require.ErrorIs(t, err, tier.ErrNotFound)
	_, err = r.Chain(ctx, storedAt(o, pages[2]))
	require.ErrorIs(t, err, tier.ErrNotFound)
	require.NoError(t, os.Remove(storetest.Path(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassManifest})))
	_, err = r.Export(ctx, chain[:1], io.Discard, func(int64) {})
	require.ErrorContains(t, err, "read the manifest of "+o.Fingerprint.String())
	_, err = r.Export(ctx, nil, io.Discard, func(int64) {})
	require.ErrorIs(t, err, ErrArguments)
}

// TestExportFromBothTiers: the first pages of a conversation may have moved down.
func TestExportFromBothTiers(t *testing.T) {
	o := testOptions(t, withRemote(t))
	s := open(t, o)
	pages := putChain(t, s, testrows.Prompt(1, 3*storetest.Tokens))
	for _, p := range pages[:2] {
		name := storedAt(o, p)
		storetest.Place(t, storetest.Path(o.Local.Root, name), storetest.Path(o.Remote.Root, name))
		require.NoError(t, os.Remove(storetest.Path(o.Local.Root, name)))
	}
	to := testOptions(t)
	done, err := importTo(ctx, to, exportOf(t, o, pages[2]))
	require.NoError(t, err)
	require.Equal(t, 3, done.Pages)
	readChain(t, open(t, to), testrows.Prompt(1, 3*storetest.Tokens), 3*storetest.Tokens)
}

// TestImportRefusesEveryTruncation: no page of a truncated archive becomes visible.
func TestImportRefusesEveryTruncation(t *testing.T) {
	from, pages := stored(t)
	archive := exportOf(t, from, pages[4])
	end := contentEnd(t, archive)
	to := testOptions(t)
	for n := 0; n < end; n += 97 {
		_, err := importTo(ctx, to, archive[:n])
		require.Error(t, err, "%d of %d bytes", n, len(archive))
		require.NoDirExists(t, to.Local.Root)
	}
	_, err := importTo(ctx, to, archive[:end])
	require.NoError(t, err, "tar's own end adds nothing")
}

// contentEnd is the end of an archive's last page.
func contentEnd(t *testing.T, archive []byte) int {
	in := bytes.NewReader(archive)
	tr := tar.NewReader(in)
	end := 0
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return end
		}
		require.NoError(t, err)
		end = len(archive) - in.Len() + int(h.Size)
	}
}

// TestImportRefusesEveryBit changes bits of the pages. Tar headers and the manifest have no
// checksum; a changed bit there is refused or has no effect on pages.
func TestImportRefusesEveryBit(t *testing.T) {
	from, pages := stored(t)
	archive := exportOf(t, from, pages[4])
	in := bytes.NewReader(archive)
	tr := tar.NewReader(in)
	_, err := tr.Next()
	require.NoError(t, err)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		start := len(archive) - in.Len()
		for at := start; at < start+int(h.Size); at += 251 {
			archive[at] ^= 1 << (at % 8)
			to := diskstore.Options{Local: diskstore.TierConfig{Root: filepath.Join(t.TempDir(), "root")}, FS: storetest.QuickFS}
			_, err := importTo(ctx, to, archive)
			require.ErrorIs(t, err, pagefile.ErrDamaged, "byte %d", at)
			require.NoDirExists(t, to.Local.Root)
			archive[at] ^= 1 << (at % 8)
			at += at % 41 // another byte of each row
		}
	}
}

// TestImportSurvivesAnErrorAtEveryOperation: after an error of any operation the root holds
// whole pages of the archive, or none.
func TestImportSurvivesAnErrorAtEveryOperation(t *testing.T) {
	from, pages := stored(t)
	archive := exportOf(t, from, pages[4])
	errnos := []syscall.Errno{syscall.ENOSPC, syscall.EIO}
	for nth := 1; ; nth++ {
		inj := vfs.Inject(storetest.QuickFS)
		to := testOptions(t, withFS(inj))
		require.NoError(t, os.Mkdir(to.Local.Root, 0o700))
		inj.Add(vfs.Rule{Nth: nth, Err: errnos[nth%len(errnos)], Short: 100})
		_, err := importTo(ctx, to, archive)
		ops := inj.Count()
		inj.Reset()
		s := open(t, to)
		n := tokensIn(s.Find(ctx, diskstore.Prompt{Tokens: testrows.Prompt(2, 2*storetest.Tokens)}).Exact)
		if err == nil {
			require.Equal(t, storetest.Tokens+5, n)
		}
		readChain(t, s, testrows.Prompt(2, 2*storetest.Tokens), n)
		c, found := check(t, rootsOf(t, to), CheckOptions{})
		for _, f := range found {
			require.False(t, f.Problem.Damage(), "%+v", f)
		}
		require.Zero(t, c.Damage)
		if nth > ops {
			return // every operation has failed once
		}
	}
}

func TestImportAsksFirst(t *testing.T) {
	from, pages := stored(t)
	archive := exportOf(t, from, pages[0])
	to := testOptions(t)
	no := errors.New("not that one")
	opt := ImportOptions{Open: storeAt(to), Accept: func(m tier.Manifest) error {
		require.Equal(t, from.Fingerprint.String(), m.Fingerprint)
		return no
	}}
	_, err := Import(ctx, opt, bytes.NewReader(archive), int64(len(archive)))
	require.ErrorIs(t, err, no)
	require.NoDirExists(t, to.Local.Root)

	opt.Accept = nil
	var last, all int64
	opt.Progress = func(done, total int64) { last, all = done, total }
	_, err = Import(ctx, opt, bytes.NewReader(archive), int64(len(archive)))
	require.NoError(t, err)
	require.Equal(t, all, last)

	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err = importTo(done, testOptions(t), archive)
	require.ErrorIs(t, err, context.Canceled)
}

// TestImportOfAFileThatChanges: after the check, another process writes another conversation's
// page to the archive's file.
func TestImportOfAFileThatChanges(t *testing.T) {
	from := testOptions(t)
	s := open(t, from)
	first := putChain(t, s, testrows.Prompt(1, storetest.Tokens))[0]
	second := putChain(t, s, testrows.Prompt(2, storetest.Tokens))[0]
	archive := &struct{ io.ReaderAt }{bytes.NewReader(exportOf(t, from, first))}
	other := exportOf(t, from, second)
	to := testOptions(t)
	_, err := Import(ctx, ImportOptions{Open: func(ctx context.Context, fp pagefile.Key, m tier.Manifest) (PageStore, error) {
		archive.ReaderAt = bytes.NewReader(other)
		return storeAt(to)(ctx, fp, m)
	}}, archive, int64(len(other)))
	var misplaced *pagefile.Misplaced
	require.ErrorAs(t, err, &misplaced)
	require.False(t, open(t, to).Has(second.Key()))
}

// FuzzImport: for any archive, every page that an import leaves is whole.
func FuzzImport(f *testing.F) {
	t := &testing.T{}
	dir := f.TempDir()
	o := diskstore.Options{
		FS: storetest.QuickFS, Fingerprint: storetest.Fingerprint(1), PageTokens: storetest.Tokens,
		Local: diskstore.TierConfig{Root: filepath.Join(dir, "local")},
	}
	s, err := diskstore.Open(ctx, o)
	require.NoError(f, err)
	var pages []*pagefile.Page
	for _, n := range []int{storetest.Tokens, storetest.Tokens + 3} {
		pages = append(pages, putChain(t, s, testrows.Prompt(n, n))...)
	}
	require.NoError(f, s.Close())
	for _, p := range pages {
		f.Add(exportOf(f, o, p))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, archive []byte) {
		to := testOptions(t)
		if _, err := importTo(ctx, to, archive); err != nil {
			require.NoDirExists(t, to.Local.Root)
			return
		}
		_, found := check(t, rootsOf(t, to), CheckOptions{})
		require.Empty(t, found)
	})
}

func TestFindAndRecent(t *testing.T) {
	o, pages := stored(t, withRemote(t))
	r := rootsOf(t, o)
	for _, p := range pages {
		found, err := r.Find(ctx, p.Key().String()[:10])
		require.NoError(t, err)
		require.Len(t, found, 1)
		require.Equal(t, storedAt(o, p), found[0].Name)
		require.Equal(t, tier.Local, found[0].Tier)
		require.FileExists(t, found[0].Path)
	}
	// A page in both tiers is one page.
	name := storedAt(o, pages[0])
	storetest.Place(t, storetest.Path(o.Local.Root, name), storetest.Path(o.Remote.Root, name))
	found, err := r.Find(ctx, name.Key.String())
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.NoError(t, os.Remove(storetest.Path(o.Local.Root, name)))
	found, err = r.Find(ctx, name.Key.String())
	require.NoError(t, err)
	require.Equal(t, tier.Remote, found[0].Tier)
	// Two keys with the same beginning.
	twin := name
	twin.Key[31]++
	storetest.Place(t, storetest.Path(o.Remote.Root, name), storetest.Path(o.Local.Root, twin))
	found, err = r.Find(ctx, name.Key.String()[:62])
	require.NoError(t, err)
	require.Len(t, found, 2)
	for _, wrong := range []string{"", "abc", "wxyz", "../..", name.Key.String()[:4] + "Z"} {
		_, err := r.Find(ctx, wrong)
		require.ErrorIs(t, err, ErrArguments, wrong)
	}
	found, err = r.Find(ctx, name.Key.String()+"00")
	require.NoError(t, err)
	require.Empty(t, found)

	last, err := r.Recent(ctx, nil)
	require.NoError(t, err)
	require.Equal(t, pages[2].Key(), last.Key, "the longest of those used in the last minute")
	_, err = r.Recent(ctx, func(pagefile.Key) bool { return false })
	require.ErrorIs(t, err, tier.ErrNotFound)
}

// putNumbers stores tokens in pages whose rows are f16, and returns the pages.
func putNumbers(t *testing.T, s *diskstore.Store, fingerprint pagefile.Key, tokens []int32) (pages []*pagefile.Page) {
	sections := []pagefile.Section{{Kind: pagefile.KindK, RowBytes: 2048}, {Kind: pagefile.KindV, RowBytes: 2048}}
	parent := fingerprint
	for at := 0; at < len(tokens); at += storetest.Tokens {
		l := storetest.Layout(t, sections, storetest.Tokens)
		p := &pagefile.Page{Parent: parent, Start: uint32(at), Tokens: tokens[at : at+storetest.Tokens], Layout: l, Payload: make([]byte, l.Size())}
		for i := 0; i < len(p.Payload); i += 2 {
			binary.LittleEndian.PutUint16(p.Payload[i:], uint16(0x3000+(i*2654435761)>>7&0x7ff))
		}
		require.NoError(t, s.Put(ctx, p))
		parent, pages = p.Key(), append(pages, p)
	}
	return pages
}

// TestLossyPages runs the tools on a conversation of which the remote tier has lossy pages.
func TestLossyPages(t *testing.T) {
	const fileBytes = 11 * pagefile.PageAlign // header, 4 blocks each of K and V, footer, and a directory's
	o := testOptions(t, withRemote(t), func(o *diskstore.Options) {
		o.Cold = diskstore.ColdTypes{K: encoding.Q8_0, V: encoding.Q4_0}
		o.Local.BudgetBytes = 3 * fileBytes
	})
	s := open(t, o)
	pages := putNumbers(t, s, o.Fingerprint, testrows.Prompt(1, 3*storetest.Tokens))
	require.NoError(t, s.Flush(ctx))
	putNumbers(t, s, o.Fingerprint, testrows.Prompt(2, 3*storetest.Tokens))
	require.NoError(t, s.Flush(ctx))
	require.EqualValues(t, 3, s.Stats().LossyPages)
	r := rootsOf(t, o)
	cold := pagefile.ColdFingerprint(o.Fingerprint)

	for _, sample := range []float64{0, 1} {
		checks, err := r.Check(ctx, CheckOptions{Sample: sample, Found: func(f Finding) { t.Errorf("found %v", f) }})
		require.NoError(t, err)
		require.Equal(t, 3, checks[1].Read)
		require.NoError(t, checks[1].Err)
	}
	last := pagefile.Name{Fingerprint: cold, Key: pages[2].Key()}
	found, err := r.Find(ctx, last.Key.String()[:12])
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, last, found[0].Name)
	h, err := Header(o.FS, found[0].Path)
	require.NoError(t, err)
	require.True(t, h.Lossy())
	h, wrong, err := VerifySections(ctx, o.FS, found[0].Path)
	require.NoError(t, err)
	require.Equal(t, make([]error, len(h.Sections)), wrong)
	chain, err := r.Chain(ctx, last)
	require.NoError(t, err)
	require.Len(t, chain, 3)
	for i, file := range chain {
		require.Equal(t, pagefile.Name{Fingerprint: cold, Key: pages[i].Key()}, file.Name)
	}
	var archive bytes.Buffer
	_, err = r.Export(ctx, chain, &archive, func(int64) {})
	require.ErrorIs(t, err, ErrLossy)
	require.Empty(t, archive.Bytes())

	// With one page exact again, Find and Chain prefer that one.
	require.NoError(t, s.Put(ctx, pages[0]))
	require.NoError(t, s.Put(ctx, pages[1]))
	found, err = r.Find(ctx, pages[1].Key().String()[:12])
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, o.Fingerprint, found[0].Fingerprint)
	chain, err = r.Chain(ctx, last)
	require.NoError(t, err)
	require.Equal(t, []pagefile.Key{o.Fingerprint, o.Fingerprint, cold}, []pagefile.Key{chain[0].Fingerprint, chain[1].Fingerprint, chain[2].Fingerprint})
	_, err = r.Export(ctx, chain[:2], &archive, func(int64) {})
	require.NoError(t, err)

	// Without a manifest, which says whose pages these are, lossy pages alone are found.
	name := pagefile.Name{Fingerprint: cold, Class: pagefile.ClassManifest}
	_, err = r.Remote.Remove(ctx, tier.Info{Name: name})
	require.NoError(t, err)
	chain, err = r.Chain(ctx, last)
	require.NoError(t, err)
	require.Equal(t, cold, chain[0].Fingerprint)
}
