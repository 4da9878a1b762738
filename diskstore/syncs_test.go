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

// TestSyncsOfAPage: a page costs the sync of its content and of its directory, in both tiers.
func TestSyncsOfAPage(t *testing.T) {
	w := newCrashWorld(t, func(o *Options) { o.Local.BudgetBytes, o.Remote.BudgetBytes = 0, 0 })
	syncs := new(pageSyncs)
	w.open()
	w.inj.Watch(syncs.watch)
	pair := neighbours(t, w.o.Fingerprint)
	require.NoError(t, w.putPage(pair[0]))
	require.Equal(t, [2]int{1, 1}, syncs.of(func() { require.NoError(t, w.putPage(pair[1])) }))
	require.Equal(t, [2]int{0, 1}, syncs.of(func() { require.NoError(t, w.putPage(pair[1])) }), "stored already")
	tail := prompt(1, 2)
	w.put(tinySections, tail)
	// The directories of the tail, of its branch, and two for each that is new or may be.
	require.Equal(t, [2]int{1, 5}, syncs.of(func() { w.put(otherSections, append(tail[:1:1], 9)) }))

	var infos []tier.Info
	for _, p := range pair {
		infos = append(infos, mustStat(t, w.s.disk, placeOf(w.o, p)))
	}
	require.NoError(t, w.s.demote(ctx, infos[0]))
	require.Equal(t, [2]int{1, 1}, syncs.of(func() { require.NoError(t, w.s.demote(ctx, infos[1])) }))
	require.Equal(t, [2]int{0, 1}, syncs.of(func() { require.NoError(t, w.s.demote(ctx, infos[1])) }), "held below")
	w.close()
}
