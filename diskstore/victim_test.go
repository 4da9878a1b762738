package diskstore

import (
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/vfs"
)

// whileDemoting demotes a page of the local tier, which must go, and calls do while
// its copy is written. That write then returns fails.
func whileDemoting(t *testing.T, s *Store, inj *vfs.Injector, info tier.Info, fails error, do func()) {
	require.NoError(t, s.copyManifest(ctx, info.Fingerprint)) // not that write
	gate := vfs.NewGate()
	inj.Add(vfs.Rule{
		Ops:  []vfs.Op{vfs.OpWrite},
		Path: regexp.MustCompile("^" + regexp.QuoteMeta(s.opt.Remote.Root) + `.*-\d+\.tmp$`),
		Nth:  1, Gate: gate, Err: fails,
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.local.evictAll(ctx, []tier.Info{info}, 1, 1)
	}()
	<-gate.Entered()
	do()
	gate.Open()
	<-done
	inj.Reset()
}

// TestVictimThatCameIntoUseStays: a page takes its time to move down, and then
// cannot. Meanwhile its conversation went on, and the new pages need it.
func TestVictimThatCameIntoUseStays(t *testing.T) {
	inj := vfs.Inject(quickFS)
	o := testOptions(t, withFS(inj), withRemote(t))
	s := open(t, o)
	tokens := prompt(1, 3*testTokens)
	first := putChain(t, s, tokens[:testTokens])[0]
	require.NoError(t, s.Flush(ctx))
	age(t, o.Local.Root, time.Now().Add(-3*time.Hour))
	s.links.clear()
	whileDemoting(t, s, inj, listAll(t, s.local)[0], syscall.EIO, func() {
		second := pageOf(t, first.Key(), testTokens, tokens[testTokens:2*testTokens])
		require.NoError(t, s.Put(ctx, second))
		require.NoError(t, s.Put(ctx, pageOf(t, second.Key(), 2*testTokens, tokens[2*testTokens:])))
	})
	require.Equal(t, len(tokens), tokensIn(s.Chain(ctx, tokens, nil)))

	// One that nobody used goes.
	unused := listAll(t, s.local)[0]
	whileDemoting(t, s, inj, unused, syscall.EIO, func() {})
	_, err := s.disk.Stat(ctx, unused.Name)
	require.ErrorIs(t, err, tier.ErrNotFound)
}

// TestVictimThatWasReplacedStays: while a page moves down it is put once more, with
// more sections. What is below does not have them.
func TestVictimThatWasReplacedStays(t *testing.T) {
	inj := vfs.Inject(quickFS)
	o := testOptions(t, withFS(inj), withRemote(t))
	s := open(t, o)
	tokens := prompt(1, testTokens)
	some := layoutOf(t, testSections[:3], testTokens)
	require.NoError(t, s.Put(ctx, &pagefile.Page{Parent: s.opt.Fingerprint, Tokens: tokens, Layout: some, Payload: make([]byte, some.Size())}))
	whileDemoting(t, s, inj, listAll(t, s.local)[0], nil, func() { putChain(t, s, tokens) })
	require.Len(t, listAll(t, s.remote), 1)
	require.Len(t, listAll(t, s.local), 1)
	readChain(t, s, tokens, testTokens)
}
