package diskstore

import (
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// pageSyncs counts the syncs of the files and of the directories of pages, and no syncs of a
// ledger.
type pageSyncs struct {
	mu          sync.Mutex
	files, dirs int
}

var (
	pageTemp = regexp.MustCompile(`-\d+\.tmp$`)
	pageDir  = regexp.MustCompile("/v1/[0-9a-f]{64}")
)

func (p *pageSyncs) watch(op vfs.Op, paths ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case op == vfs.OpSync && pageTemp.MatchString(paths[0]):
		p.files++
	case op == vfs.OpSyncDir && pageDir.MatchString(paths[0]):
		p.dirs++
	}
}

// of runs op and returns the syncs of files and of directories meanwhile.
func (p *pageSyncs) of(op func()) [2]int {
	p.mu.Lock()
	p.files, p.dirs = 0, 0
	p.mu.Unlock()
	op()
	p.mu.Lock()
	defer p.mu.Unlock()
	return [2]int{p.files, p.dirs}
}

// TestLazyNamesSyncNoDirectory: a page costs the sync of its content alone, in both tiers. The
// name of a page that replaces another one is synced nevertheless.
func TestLazyNamesSyncNoDirectory(t *testing.T) {
	for _, names := range nameModes {
		t.Run(names.name, func(t *testing.T) {
			w := newCrashWorld(t, names.set, func(o *Options) { o.Local.BudgetBytes, o.Remote.BudgetBytes = 0, 0 })
			syncs := new(pageSyncs)
			w.open()
			w.inj.Watch(syncs.watch)
			want := func(files, dirs int) [2]int {
				if w.o.LazyNames {
					dirs = 0
				}
				return [2]int{files, dirs}
			}
			pair := neighbours(t, w.o.Fingerprint)
			require.NoError(t, w.putPage(pair[0]))
			require.Equal(t, want(1, 1), syncs.of(func() { require.NoError(t, w.putPage(pair[1])) }))
			require.Equal(t, want(0, 1), syncs.of(func() { require.NoError(t, w.putPage(pair[1])) }), "stored already")
			tails := [][]int32{prompt(1, 2), append(prompt(1, 2), 7, 8)}
			w.put(tinySections, tails[0])
			// The directories of the tail, of its branch, and two for each that is new or may be.
			require.Equal(t, want(1, 5), syncs.of(func() { w.put(otherSections, append(tails[0][:1:1], 9)) }))

			var infos []tier.Info
			for _, p := range pair {
				info := mustStat(t, w.s.disk, placeOf(w.o, p))
				infos = append(infos, info)
			}
			require.NoError(t, w.s.demote(ctx, infos[0]))
			require.Equal(t, want(1, 1), syncs.of(func() { require.NoError(t, w.s.demote(ctx, infos[1])) }))
			require.Equal(t, want(0, 1), syncs.of(func() { require.NoError(t, w.s.demote(ctx, infos[1])) }), "held below")

			tokens := prompt(2, testTokens)
			w.put(tinySections, tokens)
			replaced := syncs.of(func() { w.put(otherSections, tokens) })
			require.Equal(t, 1, replaced[0])
			require.Positive(t, replaced[1])
			w.close()
		})
	}
}

// TestAfterAPowerCutLazyNamesMayBeLost, and the store goes on without their pages.
func TestAfterAPowerCutLazyNamesMayBeLost(t *testing.T) {
	for _, names := range nameModes {
		t.Run(names.name, func(t *testing.T) {
			w := newCrashWorld(t, names.set)
			w.open()
			tokens := prompt(1, testTokens)
			w.put(tinySections, tokens)
			o := w.o
			o.FS = w.mem.Crash(0, 1)
			w.close()
			s, err := Open(ctx, o)
			require.NoError(t, err)
			require.NoError(t, s.Flush(ctx))
			require.Equal(t, o.LazyNames, len(s.Find(ctx, Prompt{Tokens: tokens}).Exact) == 0)
			require.NoError(t, s.Put(ctx, tinyPages(t, o, tinySections, tokens)[0]))
			require.Len(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact, 1)
			requireExact(t, s)
			require.NoError(t, s.Close())
		})
	}
}
