package diskstore

import (
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// whileDemoting demotes a page of the local tier, which must be evicted, and calls do while
// its copy is written. The write of the copy then returns the error fails.
func whileDemoting(t *testing.T, s *Store, inj *vfs.Injector, info tier.Info, fails error, do func()) {
	require.NoError(t, copyManifest(ctx, s.disk, s.guard, info.Fingerprint)) // the manifest's write comes before
	gate := vfs.NewGate()
	inj.Add(vfs.Rule{
		Ops:  []vfs.Op{vfs.OpWrite},
		Path: regexp.MustCompile("^" + regexp.QuoteMeta(s.opt.Remote.Root) + `.*-\d+\.tmp$`),
		Nth:  1, Gate: gate, Err: fails,
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.local.room.EvictAll(ctx, []tier.Info{info}, 1, 1)
	}()
	<-gate.Entered()
	do()
	gate.Open()
	<-done
	inj.Reset()
}

// TestVictimThatCameIntoUseStays: a page takes long to move down, and the move fails.
// Meanwhile its conversation has continued, and the new pages need the page.
func TestVictimThatCameIntoUseStays(t *testing.T) {
	s, o, inj := openInjected(t, withRemote(t))
	tokens := prompt(1, 3*testTokens)
	first := putChain(t, s, tokens[:testTokens])[0]
	require.NoError(t, s.Flush(ctx))
	age(t, o.Local.Root, time.Now().Add(-3*time.Hour))
	s.chains.Forget()
	whileDemoting(t, s, inj, listAll(t, s.local)[0], syscall.EIO, func() {
		second := pageOf(t, first.Key(), testTokens, tokens[testTokens:2*testTokens])
		require.NoError(t, s.Put(ctx, second))
		require.NoError(t, s.Put(ctx, pageOf(t, second.Key(), 2*testTokens, tokens[2*testTokens:])))
	})
	require.Equal(t, len(tokens), tokensIn(s.Find(ctx, Prompt{Tokens: tokens}).Exact))

	// A page that was not used meanwhile is removed.
	unused := listAll(t, s.local)[0]
	whileDemoting(t, s, inj, unused, syscall.EIO, func() {})
	_, err := tier.Stat(ctx, s.disk, unused.Name)
	require.ErrorIs(t, err, tier.ErrNotFound)
}

// TestVictimThatWasReplacedStays: while a page moves down it is put once more, with more
// sections. The copy below does not have these sections.
func TestVictimThatWasReplacedStays(t *testing.T) {
	s, _, inj := openInjected(t, withRemote(t))
	tokens := prompt(1, testTokens)
	some := layoutOf(t, testSections[:3], testTokens)
	require.NoError(t, s.Put(ctx, &pagefile.Page{Parent: s.opt.Fingerprint, Tokens: tokens, Layout: some, Payload: make([]byte, some.Size())}))
	whileDemoting(t, s, inj, listAll(t, s.local)[0], nil, func() { putChain(t, s, tokens) })
	require.Len(t, listAll(t, s.remote), 1)
	require.Len(t, listAll(t, s.local), 1)
	readChain(t, s, tokens, testTokens)
}
