package diskstore

import (
	"context"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestFindAState: the chain ends with the last page or tail that brings a state where the caller can
// go on, and pages whose header cannot be read are told.
func TestFindAState(t *testing.T) {
	s, o := openNew(t)
	tokens, parent := prompt(1, 4*testTokens), s.opt.Fingerprint
	put := func(start, n int, sections []pagefile.Section) (key pagefile.Key) {
		page := withSections(t, parent, start, tokens[start:start+n], sections)
		require.NoError(t, s.Put(ctx, page))
		return page.Key()
	}
	for page, sections := range [][]pagefile.Section{stateSections[:2], stateSections, stateSections[:2], stateSections} {
		put(page*testTokens, 2, stateSections)
		parent = put(page*testTokens, testTokens, sections)
	}
	end := func(p Prompt) int {
		p.Tokens = tokens
		if p.State == nil {
			p.State = anywhere
		}
		found := s.Find(ctx, p)
		require.Len(t, found.Exact, 4)
		if found.State == nil {
			return 0
		}
		require.Equal(t, found.Exact[:len(found.State)-1], found.State[:len(found.State)-1])
		return found.State[len(found.State)-1].End()
	}
	require.Equal(t, 4*testTokens, end(Prompt{}))
	require.Equal(t, 3*testTokens+2, end(Prompt{Limit: 4*testTokens - 1}))
	require.Equal(t, 2*testTokens+2, end(Prompt{Limit: 3 * testTokens}), "the page has no state")
	require.Equal(t, 2*testTokens, end(Prompt{State: func(at int) bool { return at == 2*testTokens }}))
	require.Zero(t, end(Prompt{Limit: 3 * testTokens, Beyond: 2*testTokens + 2}))

	last := s.Find(ctx, Prompt{Tokens: tokens}).Exact[3]
	require.NoError(t, os.Truncate(filePath(o.Local.Root, last.name(s.pages)), 10))
	found := s.Find(ctx, Prompt{Tokens: tokens, State: anywhere})
	require.Len(t, found.Unread, 1)
	require.Equal(t, last.Key, found.Unread[0].Key)
	require.ErrorIs(t, found.Unread[0].Err, pagefile.ErrDamaged)
	require.Equal(t, 3*testTokens+2, found.State[3].End())

	s.lookup.stateTime = 0 // is over
	require.Nil(t, s.Find(ctx, Prompt{Tokens: tokens, State: anywhere}).State)
}

// TestALookUpWhoseTimeIsOver returns the pages that it has found, and none of them is a failure.
func TestALookUpWhoseTimeIsOver(t *testing.T) {
	s, _, inj := openInjected(t)
	tokens := prompt(1, 6*testTokens)
	putChain(t, s, tokens)
	limited, cancel := context.WithCancel(ctx)
	var looks atomic.Int32
	inj.Watch(func(vfs.Op, ...string) {
		if looks.Add(1) == 3 {
			cancel()
		}
	})
	found := s.Find(limited, Prompt{Tokens: tokens}).Exact
	require.NotEmpty(t, found)
	require.Less(t, len(found), 6)
	local, _ := s.Failures()
	require.Zero(t, local)
	require.Len(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact, 6)
}

func TestAnyOf(t *testing.T) {
	s := open(t, testOptions(t, withRemote(t)))
	tokens := prompt(1, testTokens)
	var keys []pagefile.Key
	for i := range 100 { // more than the remote tier looks up at once
		keys = append(keys, storetest.Page(t, s.opt.Fingerprint, 0, tokens, pagefile.Media{Offset: 2, Hash: [32]byte{byte(i)}}).Key())
	}
	stored := storetest.Page(t, s.opt.Fingerprint, 0, tokens, pagefile.Media{Offset: 2, Hash: [32]byte{77}})
	require.Equal(t, keys[77], stored.Key())
	anyOf := func(keys []pagefile.Key) pagefile.Key {
		key, found := s.AnyOf(ctx, keys)
		require.Equal(t, found, !key.IsZero())
		return key
	}

	require.True(t, anyOf(keys).IsZero())
	require.True(t, anyOf(nil).IsZero())
	require.NoError(t, s.Put(ctx, stored))
	require.Equal(t, keys[77], anyOf(keys))
	require.True(t, anyOf(keys[:77]).IsZero())

	infos := listAll(t, s.local)
	require.Len(t, infos, 1)
	require.NoError(t, s.demote(ctx, infos[0]))
	dropPage(t, s.local, infos[0])
	require.Equal(t, keys[77], anyOf(keys), "in the remote tier alone")
	require.Equal(t, keys[77], anyOf(slices.Clone(keys[77:])))

	require.NoError(t, s.Close())
	require.True(t, anyOf(keys).IsZero())
}

// A look-up tells the media of a tail and of a page that is found by its beginning.
func TestLookUpsTellMedia(t *testing.T) {
	for name, ram := range map[string]int64{"from a file": 0, "from memory": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			s := open(t, testOptions(t, withRAM(ram)))
			tokens := prompt(1, testTokens+4)
			image := pagefile.Media{Offset: 3, Hash: pagefile.Reaching([32]byte{1})}
			known := image
			known.Hash = pagefile.Reached(image.Hash, tokens[3:testTokens], pagefile.MediaWithin([]pagefile.Media{image}, 3, testTokens))
			page := storetest.Page(t, s.opt.Fingerprint, 0, tokens[:testTokens], known)
			require.NoError(t, s.Put(ctx, page))
			tail := storetest.Page(t, page.Key(), testTokens, tokens[testTokens:], image)
			require.NoError(t, s.Put(ctx, tail))

			refs := s.Find(ctx, Prompt{Tokens: tokens, Media: []pagefile.Media{image}}).Exact
			require.Len(t, refs, 1, "of a page with this name nobody knows")
			require.True(t, refs[0].Whole())
			require.Equal(t, []pagefile.Media{known}, refs[0].Media)
			refs = s.Find(ctx, Prompt{Parent: page.Key(), Start: testTokens, Tokens: tokens[testTokens:], Media: []pagefile.Media{{Offset: testTokens + 3, Hash: image.Hash}}}).Exact
			require.Len(t, refs, 1)
			require.Equal(t, []pagefile.Media{image}, refs[0].Media)

			other := append(slices.Clone(tokens[:testTokens-1]), 99999)
			refs = s.Find(ctx, Prompt{Tokens: other, Media: []pagefile.Media{image}}).Exact
			require.Equal(t, 3, tokensIn(refs), "up to the image, which attended to other text")
		})
	}
}
