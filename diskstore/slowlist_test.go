package diskstore

import (
	"fmt"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// listingHangs makes the listing of the remote tier's pages hang until the test ends.
func listingHangs(t *testing.T, inj *vfs.Injector, root string) *vfs.Gate {
	gate := vfs.NewGate()
	t.Cleanup(gate.Open)
	shard := filepath.Join(regexp.QuoteMeta(root), storetest.VersionDir, "[0-9a-f]{64}", "[0-9a-f]{2}$")
	inj.Add(vfs.Rule{Path: regexp.MustCompile("^" + shard), Ops: []vfs.Op{vfs.OpReadDir}, Gate: gate})
	return gate
}

// TestPutsGoOnWhileTheShareIsListed: a count of the remote tier takes long, or hangs. Pages move
// down meanwhile, and those are deleted for which the remote tier would have to make room.
func TestPutsGoOnWhileTheShareIsListed(t *testing.T) {
	const here, below = 20, 10
	page := physicalPage(t)
	for name, budget := range map[string]int64{"room below": 0, "no room below": below * page} {
		t.Run(name, func(t *testing.T) {
			inj := vfs.Inject(quickFS)
			o := testOptions(t, withFS(inj), withRemote(t), func(o *Options) {
				o.Local.BudgetBytes, o.Remote.BudgetBytes = here*page, budget
			})
			s := open(t, o)
			inRemote(t, s, below)
			require.NoError(t, s.Flush(ctx))
			setRemoteTimeout(s, time.Millisecond) // a move down waits as long for room
			gate := listingHangs(t, inj, o.Remote.Root)
			counted := make(chan error, 1)
			go func() {
				_, err := s.remote.files.Count(ctx, nil)
				counted <- err
			}()
			<-gate.Entered()
			demoted := s.Stats().Demoted
			for seed := range 2 * here {
				require.NoError(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(100+seed, testTokens))))
			}
			if budget == 0 {
				require.Greater(t, s.Stats().Demoted, demoted)
			}
			gate.Open()
			require.NoError(t, <-counted)
			require.NoError(t, s.Flush(ctx))
			require.Equal(t, len(listAll(t, s.remote)), s.Stats().Remote.Pages)
		})
	}
}

// TestCountListsAChangedShardAgain: while a shard of the remote tier is listed, a page moves to
// it, or one is removed. The count is exact.
func TestCountListsAChangedShardAgain(t *testing.T) {
	for _, adds := range []bool{true, false} {
		t.Run(fmt.Sprint(adds), func(t *testing.T) {
			s, _, inj := openInjected(t, withRemote(t))
			pair := neighbours(t, s.opt.Fingerprint)
			for _, p := range pair {
				require.NoError(t, s.Put(ctx, p))
			}
			demote := func(p *pagefile.Page) {
				info := mustStat(t, s.disk, s.pages.Page(p.Key()))
				require.NoError(t, s.demote(ctx, info))
			}
			demote(pair[0])
			listed := filePath(s.opt.Remote.Root, s.pages.Page(pair[0].Key()))
			changed := false
			inj.Watch(func(op vfs.Op, paths ...string) {
				if op != vfs.OpLstat || paths[0] != listed || changed {
					return
				}
				changed = true // between the names and the files
				if adds {
					demote(pair[1])
					return
				}
				info := mustStat(t, s.guard, s.pages.Page(pair[0].Key()))
				dropPage(t, s.remote, info)
			})
			_, err := s.remote.files.Count(ctx, nil)
			require.NoError(t, err)
			require.True(t, changed)
			require.Equal(t, len(listAll(t, s.remote)), s.Stats().Remote.Pages)
		})
	}
}

// neighbours returns two pages in one directory.
func neighbours(t *testing.T, fingerprint pagefile.Key) []*pagefile.Page {
	byDir := make(map[byte]*pagefile.Page)
	for seed := 0; ; seed++ {
		p := pageOf(t, fingerprint, 0, prompt(seed, testTokens))
		if first := byDir[p.Key()[0]]; first != nil {
			return []*pagefile.Page{first, p}
		}
		byDir[p.Key()[0]] = p
	}
}
