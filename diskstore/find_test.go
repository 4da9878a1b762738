package diskstore

import (
	"context"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

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
	inj := vfs.Inject(quickFS)
	o := testOptions(t, withFS(inj))
	s := open(t, o)
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
