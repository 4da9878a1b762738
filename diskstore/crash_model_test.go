package diskstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestModelWithCrashes drives a store of two tiers with random operations, power cuts and
// damage, and compares the store with the promises made to its user.
func TestModelWithCrashes(t *testing.T) {
	statesOneByOne(t)
	rapid.Check(t, func(rt *rapid.T) {
		budget := rapid.SampledFrom([]int64{0, 6 * tinyPage, 12 * tinyPage})
		m := &crashModel{crashWorld: newCrashWorld(rt, func(o *Options) {
			o.PageTokens = 3
			o.Local.BudgetBytes = budget.Draw(rt, "local budget")
			o.Remote.BudgetBytes = budget.Draw(rt, "remote budget")
		})}
		m.inj.Watch(m.watch)
		m.open()
		defer func() { m.close() }()
		rt.Repeat(map[string]func(*rapid.T){
			"put":    m.putSome,
			"chain":  m.chain,
			"damage": m.damageSome,
			"reopen": func(*rapid.T) { m.close(); m.open() },
			"crash":  m.crash,
			"":       m.exact,
		})
	})
}

// crashModel is a crashWorld in which the power may fail at any operation.
type crashModel struct {
	*crashWorld
	failing   func() *vfs.Mem // makes the state after the power cut; nil for no power cut
	countdown int             // operations until the power cut
	left      *vfs.Mem        // the state after the power cut
	held      *promise        // the promises at the power cut
}

func (m *crashModel) watch(op vfs.Op, paths ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if op == vfs.OpRemove || op == vfs.OpRename && strings.HasSuffix(paths[1], dir.TmpExt) {
		m.evictingLocked(paths[0])
	}
	if m.countdown--; m.countdown < 0 && m.failing != nil {
		m.cut()
	}
}

// cut cuts the power.
func (m *crashModel) cut() {
	m.left, m.held, m.failing = m.failing(), m.promise, nil
}

var (
	anySections = rapid.SampledFrom([][]pagefile.Section{tinySections, tinySections, otherSections})
	anyKeep     = rapid.SampledFrom([]float64{0, 0.5, 1})
)

func (m *crashModel) putSome(rt *rapid.T) {
	for _, p := range tinyPages(rt, m.o, anySections.Draw(rt, "sections"), someTokens.Draw(rt, "tokens")) {
		if err := m.putPage(p); err != nil {
			// Two pages of this prompt may exceed the budget.
			require.ErrorIs(rt, err, tier.ErrNoSpace)
			require.NotZero(rt, m.o.Local.BudgetBytes)
			return
		}
	}
}

// crash puts a prompt and cuts the power at some operation of that Put, or right after, and
// then reopens the store.
func (m *crashModel) crash(rt *rapid.T) {
	keep, seed := anyKeep.Draw(rt, "keep"), rapid.Uint64().Draw(rt, "seed")
	var spare []string
	if root := rapid.SampledFrom([]string{"", m.o.Local.Root, m.o.Remote.Root}).Draw(rt, "spare"); root != "" {
		spare = []string{root}
	}
	mem := m.mem
	m.mu.Lock()
	m.countdown = rapid.IntRange(0, 60).Draw(rt, "operations")
	m.failing = func() *vfs.Mem { return mem.Crash(keep, seed, spare...) }
	m.mu.Unlock()
	m.putSome(rt)

	m.mu.Lock()
	if m.failing != nil {
		m.cut()
	}
	m.mu.Unlock()
	m.close() // on the filesystem from before the power cut
	m.mem, m.promise = m.left, m.held
	m.inj = vfs.Inject(m.mem)
	m.inj.Watch(m.watch)
	m.o.FS = m.inj
	m.open()
}

// chain looks a prompt up. Every durable page is found, and every page found is right.
func (m *crashModel) chain(rt *rapid.T) {
	tokens := someTokens.Draw(rt, "tokens")
	want, best := 0, 0
	all := m.now().pages
	parent := m.o.Fingerprint
	for _, p := range tinyPages(rt, m.o, tinySections, tokens[:len(tokens)/3*3]) {
		known := all[placeOf(m.o, p)]
		if known == nil || !known.durable {
			break
		}
		want, parent = want+len(p.Tokens), p.Key()
	}
	for name, known := range all {
		if name.Class == pagefile.ClassTail && known.durable && known.versions[0].Parent == parent {
			best = max(best, pagefile.CommonPrefix(known.versions[0].Tokens, nil, tokens[want:], nil))
		}
	}
	refs := m.s.Find(ctx, Prompt{Tokens: tokens}).Exact
	require.GreaterOrEqual(rt, tokensIn(refs), want+best)
	for _, ref := range refs {
		m.flush() // reading one page may demote others, and delete some
		known := m.now().pages[ref.name(m.s.pages)]
		require.NotNil(rt, known, "found and never put")
		require.NoError(rt, known.read(m.s, ref))
	}
}

// damageSome flips a bit of one page.
func (m *crashModel) damageSome(rt *rapid.T) {
	m.flush()
	var all []*pagefile.Page
	for _, p := range tinyPages(rt, m.o, tinySections, someTokens.Draw(rt, "tokens")) {
		if m.now().pages[placeOf(m.o, p)] != nil {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		rt.Skip("not stored")
	}
	m.damage(rapid.SampledFrom(all).Draw(rt, "page"), rapid.IntRange(0, 8*tinyPage).Draw(rt, "bit"))
}

// exact compares the store's numbers with the files, and requires quarantine to hold no good
// page.
func (m *crashModel) exact(rt *rapid.T) {
	m.flush()
	var errs []error
	for _, lv := range m.s.tiers {
		found, err := walk(m.mem, lv.config.Root)
		errs = append(errs, err, m.now().checkFiles(m.mem, found))
		if lv == m.s.local {
			errs = append(errs, checkAccounts(m.s, found))
		}
	}
	require.NoError(rt, errors.Join(errs...))
	require.Zero(rt, m.s.Stats().TierErrors)
}
