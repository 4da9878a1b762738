package diskstore

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/diskstore/internal/counted"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/internal/testrows"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(crashRootEnv); root != "" {
		crashChild(root)
		return
	}
	if !longRun() {
		// The same histories in every run, others in the long run, so that a failure comes
		// from a change.
		if err := flag.Set("rapid.seed", "1"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// statesOneByOne marks a test that tries thousands of states one after the other, where goroutines
// do not meet: the race detector takes four times as long, and runs it only in the long run.
func statesOneByOne(t *testing.T) {
	t.Helper()
	if testrows.RaceDetector && !longRun() {
		t.Skip("runs without the race detector")
	}
}

var ctx = context.Background()

const testTokens = storetest.Tokens

var (
	testSections    = storetest.Sections
	testFingerprint = storetest.Fingerprint
	prompt          = testrows.Prompt
	layoutOf        = storetest.Layout
	fillRows        = storetest.Fill
	pageOf          = storetest.Page

	quickFS  = storetest.QuickFS
	filePath = storetest.Path
	filesIn  = storetest.FilesIn
	place    = storetest.Place
	flipAt   = storetest.FlipAt
)

// Limits of package guard for a remote tier.
const (
	failuresToOpen = 3           // in a row, that open the breaker
	breakerRest    = time.Minute // longest backoff of the breaker
	remoteWorkers  = 4           // of each kind, for look-ups and for transfers
)

// askAgain lets the breaker of a store's remote tier try again at once.
func askAgain(s *Store) {
	s.guard.Breaker.Mu.Lock()
	defer s.guard.Breaker.Mu.Unlock()
	s.guard.Breaker.Until = time.Time{}
}

// testOptions returns options for new directories, changed by edit.
func testOptions(t testing.TB, edit ...func(*Options)) Options {
	dir := t.TempDir()
	o := Options{
		FS:          quickFS,
		Fingerprint: testFingerprint(1),
		Identity:    map[string]string{"weights": "w", "namespace": "", "engine": "e1"},
		PageTokens:  testTokens,
		Local:       TierConfig{Root: filepath.Join(dir, "local")},
	}
	for _, e := range edit {
		e(&o)
	}
	return o
}

// withRemote adds a remote tier with an existing root and with enough time for a loaded
// machine.
func withRemote(t testing.TB) func(*Options) {
	return func(o *Options) {
		o.RemoteTimeout, o.ReadTimeout = time.Minute, time.Minute
		o.Remote.Root = filepath.Join(t.TempDir(), "remote")
		require.NoError(t, os.Mkdir(o.Remote.Root, 0o700))
	}
}

func withFS(fs vfs.FS) func(*Options) { return func(o *Options) { o.FS = fs } }

// start opens a store that may still be counting its files.
func start(t require.TestingT, o Options) *Store {
	s, err := Open(ctx, o)
	require.NoError(t, err)
	return s
}

// open opens a store for the time of a test, and waits for its first count.
func open(t testing.TB, o Options) *Store {
	t.Helper()
	s := start(t, o)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Flush(ctx))
	return s
}

// reopen closes a store and opens another one.
func reopen(t testing.TB, s *Store, o Options) *Store {
	t.Helper()
	require.NoError(t, s.Close())
	return open(t, o)
}

// openNew opens a store in new directories.
func openNew(t testing.TB, edit ...func(*Options)) (*Store, Options) {
	t.Helper()
	o := testOptions(t, edit...)
	return open(t, o), o
}

// injected returns options for new directories of a filesystem that takes faults.
func injected(t testing.TB, edit ...func(*Options)) (Options, *vfs.Injector) {
	inj := vfs.Inject(quickFS)
	return testOptions(t, append([]func(*Options){withFS(inj)}, edit...)...), inj
}

// openInjected opens a store with the options of injected.
func openInjected(t testing.TB, edit ...func(*Options)) (*Store, Options, *vfs.Injector) {
	t.Helper()
	o, inj := injected(t, edit...)
	return open(t, o), o, inj
}

// hold makes an operation of a filesystem wait at a gate.
func hold(inj *vfs.Injector, rule vfs.Rule) *vfs.Gate {
	rule.Gate = vfs.NewGate()
	inj.Add(rule)
	return rule.Gate
}

// putPrompt stores the pages of a prompt and returns its tokens.
func putPrompt(t testing.TB, s *Store, seed, n int) []int32 {
	t.Helper()
	tokens := prompt(seed, n)
	putChain(t, s, tokens)
	return tokens
}

// putChain stores all of tokens: full pages and, when some remain, a tail.
func putChain(t testing.TB, s *Store, tokens []int32) []*pagefile.Page {
	t.Helper()
	pages := chainOf(t, s, tokens)
	for _, p := range pages {
		require.NoError(t, s.Put(ctx, p))
	}
	return pages
}

// putPages stores prompts of one page each, with the seeds from `from` on and before `to`.
func putPages(t testing.TB, s *Store, from, to int) {
	t.Helper()
	for seed := from; seed < to; seed++ {
		putChain(t, s, prompt(seed, testTokens))
	}
}

// putSettled does as putPages, and waits for the work that each page causes.
func putSettled(t testing.TB, s *Store, from, to int) {
	t.Helper()
	for seed := from; seed < to; seed++ {
		putPages(t, s, seed, seed+1)
		require.NoError(t, s.Flush(ctx))
	}
}

// chainOf returns the pages of tokens.
func chainOf(t testing.TB, s *Store, tokens []int32) []*pagefile.Page {
	t.Helper()
	return storetest.Chain(t, s.opt.Fingerprint, s.opt.PageTokens, tokens)
}

// withSections does as pageOf, with other sections.
func withSections(t require.TestingT, parent pagefile.Key, start int, tokens []int32, sections []pagefile.Section) *pagefile.Page {
	l, err := pagefile.NewLayout(sections, len(tokens))
	require.NoError(t, err)
	p := &pagefile.Page{Parent: parent, Start: uint32(start), Tokens: tokens, Layout: l, Payload: make([]byte, l.Size())}
	fillRows(l, p.Key(), p.Payload)
	return p
}

// tokensIn returns the tokens of a chain's pages and of its tail.
func tokensIn(refs []Ref) int {
	n := 0
	for _, r := range refs {
		n += r.Tokens
	}
	return n
}

// tailsWithin returns the tails behind Prompt.Parent with which the tokens begin.
func tailsWithin(s *Store, p Prompt) []Ref {
	if p.Parent.IsZero() {
		p.Parent = s.opt.Fingerprint
	}
	return s.lookup.tailsWithin(ctx, s.lookup.after(p, p.Parent, p.Start))
}

// anywhere lets an engine go on at any position with a state.
func anywhere(int) bool { return true }

// storedLayout returns the layout of a page as the nearest tier has it.
func storedLayout(t testing.TB, s *Store, ref Ref) pagefile.Layout {
	t.Helper()
	h, err := tier.ReadHeader(ctx, s.tiers.from(ref.Tier)[0].tier, ref.name(s.pages))
	require.NoError(t, err)
	return h.Layout
}

// readError reads a page for some tokens and returns the error.
func readError(t testing.TB, s *Store, ref Ref, tokens []int32) error {
	l := layoutOf(t, testSections, ref.Stored)
	return s.Read(ctx, ref, tokens, l, Into{Rows: make([]byte, l.Size())})
}

// tryRead reads a page of some sections, and checks the rows of one that can be read.
func tryRead(t testing.TB, s *Store, ref Ref, tokens []int32, sections []pagefile.Section) error {
	t.Helper()
	l := layoutOf(t, sections, ref.Stored)
	buf, want := bytes.Repeat([]byte{0xaa}, l.Size()), make([]byte, l.Size()) // the buffer's previous content must not matter
	if err := s.Read(ctx, ref, tokens[ref.Start:int(ref.Start)+ref.Tokens], l, Into{Rows: buf}); err != nil {
		return err
	}
	fillRows(l, ref.Key, want)
	require.Equal(t, want, buf)
	return nil
}

// readRef reads a page and checks its rows.
func readRef(t testing.TB, s *Store, ref Ref, tokens []int32) {
	t.Helper()
	require.NoError(t, tryRead(t, s, ref, tokens, testSections))
}

// readChain checks that a store returns n of the tokens with their rows.
func readChain(t testing.TB, s *Store, tokens []int32, n int) {
	t.Helper()
	refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
	require.Equal(t, n, tokensIn(refs))
	for _, ref := range refs {
		readRef(t, s, ref, tokens)
	}
}

// listAll lists all files of a tier.
func listAll(t testing.TB, lv *level) []tier.Info {
	t.Helper()
	var infos []tier.Info
	require.NoError(t, lv.files.List(ctx, func(info tier.Info) { infos = append(infos, info) }))
	return infos
}

// count counts the files of a tier.
func count(t testing.TB, lv *level) *counted.Tally {
	t.Helper()
	found, err := lv.files.Count(ctx, nil)
	require.NoError(t, err)
	return found
}

// recount counts the files of both tiers anew, and updates Stats.
func recount(ctx context.Context, s *Store) (u Usage, err error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return u, err
	}
	defer leave()
	found, err := s.local.files.Count(ctx, nil)
	if err != nil {
		return u, err
	}
	u.Local = s.local.usage(ctx, found)
	if s.remote != nil {
		if found, u.RemoteErr = s.remote.files.Count(ctx, nil); u.RemoteErr == nil {
			u.Remote = s.remote.usage(ctx, found)
		}
	}
	return u, nil
}

// scan does as recount, of tiers that answer.
func scan(t testing.TB, s *Store) Usage {
	t.Helper()
	use, err := recount(ctx, s)
	require.NoError(t, err)
	require.NoError(t, use.RemoteErr)
	return use
}

func aheadOf(t testing.TB, s *Store) Ahead {
	t.Helper()
	got, err := s.Recent().ReadAhead(ctx)
	require.NoError(t, err)
	return got
}

func fileOf(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

// evictPage evicts a page of the local tier and requires its removal.
func evictPage(t require.TestingT, s *Store, info tier.Info) {
	_, err := s.local.room.Evict(ctx, info, true)
	require.NoError(t, err)
}

// dropPage deletes a page from a tier and requires its removal.
func dropPage(t require.TestingT, lv *level, info tier.Info) {
	removed, err := lv.files.Drop(ctx, info)
	require.NoError(t, err)
	require.Equal(t, info.Bytes, removed.Bytes)
}

// setRemoteTimeout changes Options.RemoteTimeout of an open store.
func setRemoteTimeout(s *Store, limit time.Duration) {
	s.lookup.remoteTimeout, s.mover.Patience = limit, limit
}

// demote makes the remote tier hold a local page.
func (s *Store) demote(ctx context.Context, info tier.Info) error {
	_, err := s.mover.Move(ctx, info)
	return err
}

// verifyFile reads a whole page file and checks every byte of it.
func verifyFile(ctx context.Context, fsys vfs.FS, path string) (*pagefile.Header, error) {
	blob, err := dir.OpenFile(fsys, path, pagefile.Name{})
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	return pagefile.Stream(ctx, blob, nil)
}

// requireWhole requires that every byte of some page files is good.
func requireWhole(t testing.TB, paths ...string) {
	t.Helper()
	for _, path := range paths {
		_, err := verifyFile(ctx, vfs.OS, path)
		require.NoError(t, err, path)
	}
}
