package diskstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

func TestPutReadChainReopen(t *testing.T) {
	for _, compress := range []bool{false, true} {
		s, o := openNew(t, func(o *Options) { o.FS, o.Compress = nil, compress })
		tokens := prompt(1, 3*testTokens+5)
		pages := putChain(t, s, tokens)
		readChain(t, s, tokens, len(tokens))
		for i, p := range pages {
			require.Equal(t, i < 3, s.Has(p.Key()))
			require.NoError(t, s.Put(ctx, p), "putting again changes nothing")
		}
		st := s.Stats()
		require.EqualValues(t, 4, st.Puts)
		require.Equal(t, 3, st.Local.Pages)
		require.Equal(t, 1, st.Local.Tails)
		require.EqualValues(t, 4, st.Hits)
		require.NoError(t, s.Close())
		require.ErrorIs(t, s.Put(ctx, pages[0]), tier.ErrClosed)
		require.Empty(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact)
		require.False(t, s.Has(pages[0].Key()))
		require.NoError(t, s.Close())

		o.Compress = !compress // both encodings are always readable
		s = open(t, o)
		readChain(t, s, tokens, len(tokens))
		require.Equal(t, st.Local, s.Stats().Local)
		refs := s.Find(ctx, Prompt{Parent: pages[0].Key(), Start: testTokens, Tokens: tokens[testTokens:]}).Exact
		require.Equal(t, len(tokens)-testTokens, tokensIn(refs))
		require.EqualValues(t, testTokens, refs[0].Start)
		require.Empty(t, filesIn(t, o.Local.Root, dir.TmpExt))
	}
}

func TestMediaIsPartOfThePage(t *testing.T) {
	s := open(t, testOptions(t))
	tokens := prompt(1, testTokens+4)
	cat, dog := pagefile.Media{Offset: 3, Hash: [32]byte{1}}, pagefile.Media{Offset: 3, Hash: [32]byte{2}}
	p := pageOf(t, s.opt.Fingerprint, 0, tokens[:testTokens], cat)
	require.NoError(t, s.Put(ctx, p))
	tail := pageOf(t, p.Key(), testTokens, tokens[testTokens:], pagefile.Media{Offset: 2, Hash: [32]byte{5}})
	require.NoError(t, s.Put(ctx, tail))

	inTail := pagefile.Media{Offset: testTokens + 2, Hash: [32]byte{5}}
	other := pagefile.Media{Offset: testTokens + 2, Hash: [32]byte{6}}
	require.Equal(t, testTokens+4, tokensIn(s.Find(ctx, Prompt{Tokens: tokens, Media: []pagefile.Media{inTail, cat}}).Exact), "order of media does not matter")
	require.Equal(t, testTokens+2, tokensIn(s.Find(ctx, Prompt{Tokens: tokens, Media: []pagefile.Media{cat, other}}).Exact))
	require.Equal(t, testTokens+2, tokensIn(s.Find(ctx, Prompt{Tokens: tokens, Media: []pagefile.Media{cat}}).Exact))
	require.Equal(t, 3, tokensIn(s.Find(ctx, Prompt{Tokens: tokens, Media: []pagefile.Media{dog}}).Exact), "the tokens before the image")
	require.Equal(t, 3, tokensIn(s.Find(ctx, Prompt{Tokens: tokens}).Exact))
	refs := s.Find(ctx, Prompt{Parent: p.Key(), Start: testTokens, Tokens: tokens[testTokens:], Media: []pagefile.Media{cat, inTail}}).Exact
	require.Equal(t, 4, tokensIn(refs))
}

func TestTails(t *testing.T) {
	for _, ram := range []int64{0, plenty} {
		t.Run(fmt.Sprint(ram), func(t *testing.T) { testTails(t, open(t, testOptions(t, withRAM(ram)))) })
	}
}

func testTails(t *testing.T, s *Store) {
	tokens := prompt(1, testTokens+6)
	putChain(t, s, tokens[:testTokens+3])
	readChain(t, s, tokens, testTokens+3)

	// A longer tail replaces the tail that it extends.
	putChain(t, s, tokens[:testTokens+5])
	readChain(t, s, tokens, testTokens+5)
	readChain(t, s, tokens[:testTokens+2], testTokens+2)
	require.Equal(t, 1, s.Stats().Local.Tails)

	// A tail that diverges is kept as well, and the longer prefix is preferred.
	branch := append(append([]int32{}, tokens[:testTokens+2]...), 77, 78)
	putChain(t, s, branch)
	require.Equal(t, 2, s.Stats().Local.Tails)
	readChain(t, s, tokens, testTokens+5)
	readChain(t, s, branch, testTokens+4)

	// Without a common prefix no tail is found.
	readChain(t, s, append(append([]int32{}, tokens[:testTokens]...), 5), testTokens)

	// Any number of others stays.
	for i := range 40 {
		putChain(t, s, append(append([]int32{}, tokens[:testTokens]...), int32(100+i)))
	}
	for i := range 40 {
		readChain(t, s, append(append([]int32{}, tokens[:testTokens]...), int32(100+i), 7), testTokens+1)
	}
	readChain(t, s, branch, testTokens+4)
	require.Equal(t, 42, s.Stats().Local.Tails)
}

func TestReadRefusesWhatWasNotAskedFor(t *testing.T) {
	for from, ram := range map[string]int64{tier.Local: 0, tier.RAM: plenty} {
		t.Run(from, func(t *testing.T) { readRefusesWhatWasNotAskedFor(t, from, ram) })
	}
}

func readRefusesWhatWasNotAskedFor(t *testing.T, from string, ram int64) {
	s, o := openNew(t, withRAM(ram))
	tokens := putPrompt(t, s, 1, 2*testTokens)
	ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[1]
	require.Equal(t, from, ref.Tier)
	good := layoutOf(t, testSections, testTokens)
	mine := tokens[testTokens:]
	wrongTokens := append([]int32{}, mine...)
	wrongTokens[testTokens-1]++
	resize := append([]pagefile.Section{}, testSections...)
	resize[1].RowBytes++
	swapped := append([]pagefile.Section{}, testSections...)
	swapped[0], swapped[1] = swapped[1], swapped[0]
	tests := map[string]func() error{
		"tokens": func() error { return s.Read(ctx, ref, wrongTokens, good, Into{Rows: make([]byte, good.Size())}) },
		"parent": func() error {
			r := ref
			r.Parent[0]++
			return s.Read(ctx, r, mine, good, Into{Rows: make([]byte, good.Size())})
		},
		"start": func() error {
			r := ref
			r.Start = 0
			return s.Read(ctx, r, mine, good, Into{Rows: make([]byte, good.Size())})
		},
		"row bytes": func() error {
			l := layoutOf(t, resize, testTokens)
			return s.Read(ctx, ref, mine, l, Into{Rows: make([]byte, l.Size())})
		},
		"section order": func() error {
			l := layoutOf(t, swapped, testTokens)
			return s.Read(ctx, ref, mine, l, Into{Rows: make([]byte, l.Size())})
		},
		"a section it has not": func() error {
			l := layoutOf(t, append(slices.Clone(testSections), pagefile.Section{Group: 9, RowBytes: 4}), testTokens)
			return s.Read(ctx, ref, mine, l, Into{Rows: make([]byte, l.Size())})
		},
	}
	for name, read := range tests {
		require.ErrorIs(t, read(), pagefile.ErrMismatch, name)
	}
	require.EqualValues(t, len(tests), s.Stats().Mismatched)
	require.Zero(t, s.Stats().RAMHits)
	readRef(t, s, ref, tokens) // none of these errors cost the page
	require.Equal(t, from == tier.RAM, s.Stats().RAMHits == 1)

	require.ErrorIs(t, s.Read(ctx, ref, mine[1:], good, Into{Rows: make([]byte, good.Size())}), pagefile.ErrInvalidPage)
	require.ErrorIs(t, s.Read(ctx, ref, mine, good, Into{Rows: make([]byte, 1)}), pagefile.ErrInvalidPage)
	gone := ref
	gone.Key[0]++
	require.ErrorIs(t, s.Read(ctx, gone, mine, good, Into{Rows: make([]byte, good.Size())}), tier.ErrNotFound)

	// The same files under another fingerprint, page size or name.
	file := filePath(o.Local.Root, s.pages.Page(ref.Key))
	o2 := o
	o2.Fingerprint = testFingerprint(2)
	s2 := open(t, o2)
	place(t, file, filePath(o.Local.Root, s2.pages.Page(ref.Key)))
	require.ErrorIs(t, s2.Read(ctx, ref, mine, good, Into{Rows: make([]byte, good.Size())}), pagefile.ErrMismatch)
	require.False(t, s2.Has(ref.Key), "a page in another's place is quarantined")
	wrong := ref
	wrong.Key[5]++
	place(t, file, filePath(o.Local.Root, s.pages.Page(wrong.Key)))
	require.ErrorIs(t, s.Read(ctx, wrong, mine, good, Into{Rows: make([]byte, good.Size())}), pagefile.ErrMismatch)
	require.False(t, s.Has(wrong.Key))
	o3 := o
	o3.PageTokens = testTokens / 2
	_, err := Open(ctx, o3)
	require.ErrorIs(t, err, pagefile.ErrMismatch)
}

func TestPutRefusesInvalidPages(t *testing.T) {
	s := open(t, testOptions(t))
	fp := s.opt.Fingerprint
	ok := func() *pagefile.Page { return pageOf(t, fp, 0, prompt(1, testTokens)) }
	for name, edit := range map[string]func(p *pagefile.Page){
		"no tokens":     func(p *pagefile.Page) { p.Tokens = nil },
		"too many":      func(p *pagefile.Page) { *p = *pageOf(t, fp, 0, prompt(1, testTokens+1)) },
		"start":         func(p *pagefile.Page) { p.Start = 3 },
		"parent":        func(p *pagefile.Page) { p.Parent = pagefile.Key{9} },
		"layout":        func(p *pagefile.Page) { p.Layout = layoutOf(t, testSections, 3) },
		"payload":       func(p *pagefile.Page) { p.Payload = p.Payload[1:] },
		"media outside": func(p *pagefile.Page) { p.Media = []pagefile.Media{{Offset: testTokens}} },
		"media order":   func(p *pagefile.Page) { p.Media = []pagefile.Media{{Offset: 2}, {Offset: 1}} },
	} {
		p := ok()
		edit(p)
		require.ErrorIs(t, s.Put(ctx, p), pagefile.ErrInvalidPage, name)
	}
	require.Zero(t, s.Stats().Local.Pages)
	dirty := ok()
	dirty.Layout.Gap(dirty.Payload, 0)[0] = 1
	require.NoError(t, s.Put(ctx, dirty), "gaps are cleared, not stored")
	readChain(t, s, prompt(1, testTokens), testTokens)
}

func TestDamageIsQuarantinedAndRepaired(t *testing.T) {
	var log strings.Builder
	s, o := openNew(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	tokens := prompt(1, testTokens+3)
	pages := putChain(t, s, tokens)
	refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
	for i, ref := range refs {
		path := filePath(o.Local.Root, ref.name(s.pages))
		flipAt(t, path, -pagefile.FooterBytes-1)
		err := readError(t, s, ref, pages[i].Tokens)
		require.ErrorIs(t, err, pagefile.ErrDamaged)
		require.NoFileExists(t, path)
	}
	require.EqualValues(t, 2, s.Stats().Damaged)
	require.Equal(t, TierStats{}, s.Stats().Local)
	require.Len(t, filesIn(t, filepath.Join(o.Local.Root, storetest.VersionDir, storetest.QuarantineDir), dir.PageExt), 2)
	require.Equal(t, 2, strings.Count(log.String(), "not usable"))
	putChain(t, s, tokens)
	readChain(t, s, tokens, len(tokens))

	// Quarantine is bounded, and a full quarantine keeps its files.
	for i := range storetest.MaxQuarantined + 3 {
		name := s.pages.Page(pagefile.Key{byte(i)})
		place(t, filesIn(t, filepath.Join(o.Local.Root, storetest.VersionDir, storetest.QuarantineDir), dir.PageExt)[0], filePath(o.Local.Root, name))
		moved, err := s.disk.Quarantine(ctx, tier.Info{Name: name}, "test")
		if i < storetest.MaxQuarantined-len(refs) {
			require.NoError(t, err)
			require.True(t, moved)
			continue
		}
		require.ErrorIs(t, err, tier.ErrQuarantineFull)
		require.FileExists(t, filePath(o.Local.Root, name))
	}
	require.Len(t, filesIn(t, filepath.Join(o.Local.Root, storetest.VersionDir, storetest.QuarantineDir), dir.PageExt), storetest.MaxQuarantined)
}

func TestDamagedTailHeaderIsQuarantinedByChain(t *testing.T) {
	s, o := openNew(t)
	tokens := putPrompt(t, s, 1, 3)
	path := filePath(o.Local.Root, s.Find(ctx, Prompt{Tokens: tokens}).Exact[0].name(s.pages))
	require.NoError(t, os.Truncate(path, 100))
	require.Empty(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact)
	require.NoFileExists(t, path)
	require.EqualValues(t, 1, s.Stats().Damaged)
}

func TestPutReplacesWhatIsNoGood(t *testing.T) {
	s, o := openNew(t)
	tokens := prompt(1, testTokens)
	p := putChain(t, s, tokens)[0]
	path := filePath(o.Local.Root, s.pages.Page(p.Key()))
	require.NoError(t, os.Truncate(path, 5000))
	require.NoError(t, s.Put(ctx, p))
	readChain(t, s, tokens, testTokens)
	require.EqualValues(t, 1, s.Stats().Damaged)

	_, err := recount(ctx, s) // counts the bytes that truncating without the store has freed
	require.NoError(t, err)

	// A page with other sections under the same fingerprint is useless to a reader of these
	// sections.
	narrow := layoutOf(t, testSections[:2], testTokens)
	other := &pagefile.Page{Parent: p.Parent, Tokens: tokens, Layout: narrow, Payload: make([]byte, narrow.Size())}
	require.NoError(t, s.Put(ctx, other))
	require.NoError(t, s.Put(ctx, p))
	readChain(t, s, tokens, testTokens)
	requireExact(t, s)
}

func TestRootDeletedWhileOpen(t *testing.T) {
	s, o := openNew(t)
	tokens := putPrompt(t, s, 1, 2*testTokens+2)
	refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
	require.NoError(t, os.RemoveAll(o.Local.Root))
	require.Empty(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact)
	require.ErrorIs(t, readError(t, s, refs[0], tokens[:testTokens]), tier.ErrNotFound)
	putChain(t, s, tokens)
	readChain(t, s, tokens, len(tokens))
	scan(t, s)
	require.Equal(t, 2, s.Stats().Local.Pages)
}

func TestTwoStoresShareARoot(t *testing.T) {
	o := testOptions(t, func(o *Options) { o.Local.BudgetBytes = 40 * 53_000 })
	stores := []*Store{open(t, o), open(t, o)}
	var wg sync.WaitGroup
	for w := range 4 {
		s := stores[w%2]
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(uint64(w), 3))
			for range 25 {
				tokens := prompt(rng.IntN(6), (1+rng.IntN(5))*testTokens+rng.IntN(testTokens))
				parent := s.opt.Fingerprint
				for at := 0; at < len(tokens); at += testTokens {
					p := pageOf(t, parent, at, tokens[at:min(at+testTokens, len(tokens))])
					err := s.Put(ctx, p)
					if errors.Is(err, tier.ErrNoSpace) {
						break // the other stores used all room while this one waited
					}
					if err != nil {
						t.Errorf("put: %v", err)
					}
					parent = p.Key()
				}
				for _, ref := range s.Find(ctx, Prompt{Tokens: tokens}).Exact {
					l, _ := pagefile.NewLayout(testSections, ref.Stored)
					buf := make([]byte, l.Size())
					err := s.Read(ctx, ref, tokens[ref.Start:int(ref.Start)+ref.Tokens], l, Into{Rows: buf})
					if err != nil && !errors.Is(err, tier.ErrNotFound) { // evicted meanwhile
						t.Errorf("read: %v", err)
					}
				}
			}
		}()
	}
	wg.Wait()
	for i, s := range stores { // alone, neither is refused
		tokens := putPrompt(t, s, 10+i, 5*testTokens)
		require.Len(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact, 5)
		require.NoError(t, s.Flush(ctx))
		require.Zero(t, s.Stats().Damaged+s.Stats().Mismatched)
	}
	_, err := recount(ctx, stores[0])
	require.NoError(t, err)
	use, err := recount(ctx, stores[1])
	require.NoError(t, err)
	require.Equal(t, stores[0].Stats().Local, stores[1].Stats().Local)
	require.LessOrEqual(t, use.Local.RootBytes, o.Local.BudgetBytes+6*53_000)
	requireWhole(t, filesIn(t, filepath.Join(o.Local.Root, storetest.VersionDir), dir.PageExt)...)
}

func TestScanAndReclaim(t *testing.T) {
	o := testOptions(t, withRemote(t))
	identities := map[byte]map[string]string{
		1: {"weights": "w", "namespace": "", "engine": "new"},
		2: {"weights": "w", "namespace": "", "engine": "old"},
		3: {"weights": "w", "namespace": "", "engine": "older, pinned"},
		4: {"weights": "w", "namespace": "tenant", "engine": "old"},
		5: {"weights": "other", "namespace": "", "engine": "old"},
		6: {"weights": "w", "namespace": "", "engine": "new", "kv": "q8_0"},
		7: {"weights": "w"},
		8: nil,
	}
	stores := make(map[byte]*Store)
	for n, id := range identities {
		o := o
		o.Fingerprint, o.Identity = testFingerprint(n), id
		stores[n] = open(t, o)
		putChain(t, stores[n], prompt(int(n), testTokens+1))
	}
	s := stores[1]
	use := scan(t, s)
	require.Equal(t, 1, use.Local.Pages)
	require.Equal(t, 1, use.Local.Tails)
	require.Len(t, use.Local.Others, 7)
	require.Equal(t, identities[2], use.Local.Others[0].Identity)
	require.Equal(t, 8*use.Local.Bytes, use.Local.RootBytes)

	got, err := s.Reclaim(ctx, use, func(use FingerprintUsage) bool {
		require.NotEqual(t, testFingerprint(1), use.Fingerprint, "unwanted was called for the store's own fingerprint")
		require.WithinDuration(t, time.Now(), use.LastUsed, time.Minute)
		return use.Identity["engine"] == "old" && use.Identity["weights"] == "w" && use.Identity["namespace"] == ""
	})
	require.NoError(t, err)
	require.Equal(t, Reclaimed{Fingerprints: 1, Pages: 2, Bytes: use.Local.Bytes}, got)
	require.NoDirExists(t, filepath.Join(o.Local.Root, storetest.VersionDir, testFingerprint(2).String()))
	for n, s := range stores {
		want := testTokens + 1
		if n == 2 {
			want = 0
		}
		readChain(t, s, prompt(int(n), testTokens+1), want)
	}
	require.Equal(t, 7, s.Stats().Local.Pages)
	putChain(t, stores[2], prompt(2, testTokens)) // after Reclaim the store can put the page again
	readChain(t, stores[2], prompt(2, testTokens), testTokens)
}

func TestOptions(t *testing.T) {
	good := testOptions(t)
	for name, edit := range map[string]func(*Options){
		"fingerprint": func(o *Options) { o.Fingerprint = pagefile.Key{} },
		"root":        func(o *Options) { o.Local.Root = "" },
		"same root":   func(o *Options) { o.Remote.Root = o.Local.Root + "/." },
		"page tokens": func(o *Options) { o.PageTokens = -1 },
		"budget":      func(o *Options) { o.Remote.BudgetBytes = -1 },
		"writes":      func(o *Options) { o.WritePerDay = -1 },
		"timeout":     func(o *Options) { o.ReadTimeout = -1 },
		"operation":   func(o *Options) { o.Timeout = -1 },
		"eviction":    func(o *Options) { o.Eviction = EvictLRU + 1 },
		"no eviction": func(o *Options) { o.Eviction = -1 },
	} {
		o := good
		edit(&o)
		_, err := Open(ctx, o)
		require.ErrorIs(t, err, ErrOptions, name)
	}
	o, err := (Options{Fingerprint: pagefile.Key{1}, Local: TierConfig{Root: "x"}}).withDefaults(true)
	require.NoError(t, err)
	require.Equal(t, DefaultPageTokens, o.PageTokens)
	require.True(t, filepath.IsAbs(o.Local.Root))
	require.Equal(t, 250*time.Millisecond, o.RemoteTimeout)
	require.NoDirExists(t, good.Local.Root, "refused options make nothing")
}

// TestFlushAndCloseEndTheWorkOfBothTiers: Flush waits for the background work of each tier,
// and Close ends that work.
func TestFlushAndCloseEndTheWorkOfBothTiers(t *testing.T) {
	s := open(t, testOptions(t, withRemote(t)))
	for _, lv := range []*level{s.local, s.remote} {
		release := make(chan struct{})
		lv.collecting.Submit("held", func(context.Context) { <-release })
		soon, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		require.ErrorIs(t, s.Flush(soon), context.DeadlineExceeded, lv.name)
		cancel()
		close(release)
		require.NoError(t, s.Flush(ctx))
	}
	began, ended := make(chan struct{}), make(chan struct{})
	s.remote.collecting.Submit("runs", func(ctx context.Context) {
		close(began)
		<-ctx.Done()
		close(ended)
	})
	<-began
	require.NoError(t, s.Close())
	select {
	case <-ended:
	default:
		t.Fatal("the store is closed, and work on the remote tier goes on")
	}
}

func TestRoots(t *testing.T) {
	folder := t.TempDir()
	mk := func(name string, mode os.FileMode) string {
		path := filepath.Join(folder, name)
		require.NoError(t, os.Mkdir(path, 0o700))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	good := mk("good", 0o755)
	link := filepath.Join(folder, "link")
	require.NoError(t, os.Symlink(good, link))
	file := filepath.Join(folder, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	cases := map[string]error{
		good: nil, link: tier.ErrRootSymlink, link + "/": tier.ErrRootSymlink, file: tier.ErrRootNotDir,
		mk("group", 0o770): tier.ErrRootMode, mk("world", 0o702): tier.ErrRootMode, filepath.Join(folder, "none"): os.ErrNotExist,
	}
	if os.Geteuid() == 0 {
		foreign := mk("foreign", 0o700)
		require.NoError(t, os.Chown(foreign, 12345, -1))
		cases[foreign] = tier.ErrRootOwner
	}
	for path, want := range cases {
		require.ErrorIs(t, dir.CheckRoot(vfs.OS, path), want, path)
		if want == nil || want == os.ErrNotExist {
			continue
		}
		_, err := Open(ctx, testOptions(t, func(o *Options) { o.Local.Root = path }))
		require.ErrorIs(t, err, want)
		_, err = Open(ctx, testOptions(t, func(o *Options) { o.Remote.Root = path }))
		require.ErrorIs(t, err, want)
	}
}
