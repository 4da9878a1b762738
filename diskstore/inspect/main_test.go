package inspect

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/internal/testrows"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// testOptions returns options for new directories, changed by edit.
func testOptions(t testing.TB, edit ...func(*diskstore.Options)) diskstore.Options {
	o := diskstore.Options{
		FS: storetest.QuickFS, Fingerprint: storetest.Fingerprint(1), PageTokens: storetest.Tokens,
		Identity: map[string]string{"weights": "w", "namespace": "", "engine": "e1"},
		Local:    diskstore.TierConfig{Root: filepath.Join(t.TempDir(), "local")},
	}
	for _, e := range edit {
		e(&o)
	}
	return o
}

// withRemote adds a remote tier with an existing root and with enough time for a loaded machine.
func withRemote(t testing.TB) func(*diskstore.Options) {
	return func(o *diskstore.Options) {
		o.RemoteTimeout, o.ReadTimeout = time.Minute, time.Minute
		o.Remote.Root = filepath.Join(t.TempDir(), "remote")
		require.NoError(t, os.Mkdir(o.Remote.Root, 0o700))
	}
}

func withFS(fs vfs.FS) func(*diskstore.Options) { return func(o *diskstore.Options) { o.FS = fs } }

func open(t testing.TB, o diskstore.Options) *diskstore.Store {
	t.Helper()
	s, err := diskstore.Open(ctx, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Flush(ctx))
	return s
}

// putChain stores all of tokens, in pages of the first fingerprint if none is named.
func putChain(t testing.TB, s *diskstore.Store, tokens []int32, fingerprint ...pagefile.Key) []*pagefile.Page {
	t.Helper()
	pages := storetest.Chain(t, append(fingerprint, storetest.Fingerprint(1))[0], storetest.Tokens, tokens)
	for _, p := range pages {
		require.NoError(t, s.Put(ctx, p))
	}
	return pages
}

// stored makes roots that hold two conversations, one of them compressed, and returns the
// options and the stored pages.
func stored(t testing.TB, edit ...func(*diskstore.Options)) (diskstore.Options, []*pagefile.Page) {
	t.Helper()
	o := testOptions(t, edit...)
	s, err := diskstore.Open(ctx, o)
	require.NoError(t, err)
	pages := putChain(t, s, testrows.Prompt(1, 2*storetest.Tokens+3))
	require.NoError(t, s.Close())
	o.Compress = true
	s, err = diskstore.Open(ctx, o)
	require.NoError(t, err)
	pages = append(pages, putChain(t, s, testrows.Prompt(2, storetest.Tokens+5))...)
	require.NoError(t, s.Close())
	return o, pages
}

// storedAt returns the name under which a store with options o keeps a page.
func storedAt(o diskstore.Options, p *pagefile.Page) pagefile.Name {
	if len(p.Tokens) < o.PageTokens {
		return pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassTail, Key: p.Key()}
	}
	return pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassPage, Key: p.Key()}
}

// rootsOf opens the roots of a store.
func rootsOf(t testing.TB, o diskstore.Options) *Roots {
	t.Helper()
	closed := func(tr *dir.Tier) *dir.Tier {
		t.Cleanup(func() { require.NoError(t, tr.Close()) })
		return tr
	}
	r := &Roots{Local: closed(dir.New(o.FS, o.Local.Root, dir.Options{Timeout: o.Timeout}))}
	if o.Remote.Root != "" {
		r.Remote = closed(dir.New(o.FS, o.Remote.Root, dir.Options{Shared: true, Timeout: o.Timeout}))
	}
	return r
}

// tokensIn returns the tokens of a chain's pages and of its tail.
func tokensIn(refs []diskstore.Ref) int {
	n := 0
	for _, r := range refs {
		n += r.Tokens
	}
	return n
}

// readChain checks that a store returns n of the tokens with their rows.
func readChain(t testing.TB, s *diskstore.Store, tokens []int32, n int) {
	t.Helper()
	refs := s.Find(ctx, diskstore.Prompt{Tokens: tokens}).Exact
	require.Equal(t, n, tokensIn(refs))
	for _, ref := range refs {
		l := storetest.Layout(t, storetest.Sections, ref.Stored)
		buf, want := bytes.Repeat([]byte{0xaa}, l.Size()), make([]byte, l.Size())
		require.NoError(t, s.Read(ctx, ref, tokens[ref.Start:int(ref.Start)+ref.Tokens], l, diskstore.Into{Rows: buf}))
		storetest.Fill(l, ref.Key, want)
		require.Equal(t, want, buf)
	}
}

// requireExact fails unless the store's numbers equal a fresh count.
func requireExact(t *testing.T, s *diskstore.Store, o diskstore.Options) {
	t.Helper()
	require.NoError(t, s.Flush(ctx))
	r, err := diskstore.OpenRoot(ctx, diskstore.RootOptions{Local: o.Local, FS: o.FS})
	require.NoError(t, err)
	counted, err := r.Usage(ctx)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	known := s.Stats().Local
	known.Down = false
	require.Equal(t, diskstore.TierStats{Pages: counted.Local.Pages, Tails: counted.Local.Tails, Bytes: counted.Local.Bytes}, known)
}

// encodeFile returns a page's file.
func encodeFile(t testing.TB, p *pagefile.Page) []byte {
	t.Helper()
	e, err := pagefile.Encode(storetest.Fingerprint(1), storetest.Tokens, p, nil)
	require.NoError(t, err)
	var file bytes.Buffer
	require.NoError(t, e.WriteTo(func(b []byte) error { file.Write(b); return nil }))
	return file.Bytes()
}

func TestVerifyAndInspectFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.kvp")
	p := storetest.Page(t, storetest.Fingerprint(1), 0, testrows.Prompt(1, storetest.Tokens))
	file := encodeFile(t, p)
	require.NoError(t, os.WriteFile(path, file, 0o600))
	verify := func() (*pagefile.Header, error) {
		blob, err := dir.OpenFile(vfs.OS, path, pagefile.Name{})
		require.NoError(t, err)
		defer blob.Close()
		return pagefile.Stream(ctx, blob, nil)
	}
	h, err := verify()
	require.NoError(t, err)
	require.Equal(t, p.Key(), h.Key)
	require.True(t, h.Layout.Equal(p.Layout))

	file[len(file)-pagefile.FooterBytes-1] ^= 1
	require.NoError(t, os.WriteFile(path, file, 0o600))
	_, err = verify()
	require.ErrorIs(t, err, pagefile.ErrDamaged)
	_, err = Header(vfs.OS, path)
	require.NoError(t, err, "the header is good")
	_, err = Header(vfs.OS, path+"x")
	require.ErrorIs(t, err, tier.ErrNotFound)
}
