package diskstore

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

const (
	// crashStates and crashStatesLong are the least numbers of crashes checked in a normal run
	// and in a long one, which takes a quarter of an hour on two cores with nothing beside it.
	crashStates     = 10_000
	crashStatesLong = 100_000

	// crashSeeds is the number of different halves that survive each crash.
	crashSeeds = 8
)

// TestCrashAtEveryOperation cuts the power at every operation of a workload that uses every
// function of a store. None, half or all of the unsynced data survives, on both machines or on
// one. After reopening, a page is whole or absent, no published page is missing, the numbers
// are exact, files of dead processes are removed, and the store can be written.
func TestCrashAtEveryOperation(t *testing.T) {
	statesOneByOne(t)
	for _, mode := range crashModes {
		t.Run(mode.name, func(t *testing.T) { crashAtEveryOperation(t, mode.set, mode.share) })
	}
}

// crashModes are a store of exact pages, and one that makes pages lossy. One in share of the crashes is
// checked; a normal run crashes at one in share points.
var crashModes = []struct {
	name  string
	set   func(*Options)
	share int
}{
	{"exact pages", func(*Options) {}, 1},
	{"lossy pages", func(o *Options) {
		o.Cold = ColdTypes{encoding.Q4_0, encoding.Q4_0}
		o.Local.BudgetBytes, o.Remote.BudgetBytes = 5*tinyPage, 6*tinyPage
	}, 3},
}

func crashAtEveryOperation(t *testing.T, edit func(*Options), share int) {
	want, long := int64(crashStates), longRun()
	if long {
		want = crashStatesLong
	}
	want /= int64(share)
	var states int64
	for seed := uint64(1); states < want && !t.Failed(); seed++ {
		r := recordCrashes(t, seed, edit)
		if r.long = long; !long {
			r.thin(share)
		}
		n := r.checkAll()
		states += n
		t.Logf("workload %d: %d crash states at %d of %d operations, the others changed nothing",
			seed, n, len(r.points), r.operations)
	}
	fmt.Printf("crash states: %d\n", states)
	require.GreaterOrEqual(t, states, want)
}

// crashPoint is a moment at which the power may fail.
type crashPoint struct {
	mem     *vfs.Mem
	promise *promise
	nth     int    // the first operation that is not carried out
	what    string // a description of that operation
}

// crashRecord is every crash point of one workload.
type crashRecord struct {
	*crashWorld
	points     []crashPoint
	operations int
	last       *promise
	changed    bool // the filesystem has changed since the last point
	long       bool
}

// recordCrashes runs a workload and copies the world before each operation, if the world has
// changed since the last copy.
func recordCrashes(t testing.TB, seed uint64, edit ...func(*Options)) *crashRecord {
	r := &crashRecord{crashWorld: newCrashWorld(t, edit...), changed: true}
	r.inj.Watch(r.before)
	r.workload(rand.New(rand.NewPCG(seed, 1)))
	r.inj.Watch(nil)
	r.point("the end")
	for what, n := range map[string]uint64{
		"demote": r.did.Demoted, "promote": r.did.Promoted, "evict": r.did.Evicted, "quarantine": r.did.Damaged,
	} {
		require.NotZero(t, n, "workload %d did not %s", seed, what)
	}
	require.Equal(t, r.o.Cold.on(), r.did.LossyPages > 0)
	return r
}

// before is called before each operation.
func (r *crashRecord) before(op vfs.Op, paths ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if op == vfs.OpRemove || op == vfs.OpRename && strings.HasSuffix(paths[1], dir.TmpExt) {
		r.evictingLocked(paths[0])
	}
	r.pointLocked(fmt.Sprintf("%s %s", op, strings.Join(paths, " ")))
	switch op {
	case vfs.OpCreate, vfs.OpMkdir, vfs.OpRename, vfs.OpRemove, vfs.OpChtimes, vfs.OpSyncDir, vfs.OpLock, vfs.OpWrite, vfs.OpSync:
		r.changed = true
	}
}

// thin keeps one in share points.
func (r *crashRecord) thin(share int) {
	kept := r.points[:0]
	for i := 0; i < len(r.points); i += share {
		kept = append(kept, r.points[i])
	}
	r.points = kept
}

func (r *crashRecord) point(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pointLocked(what)
}

func (r *crashRecord) pointLocked(what string) {
	if r.operations++; !r.changed && r.last == r.promise {
		return
	}
	r.points = append(r.points, crashPoint{r.mem.Clone(), r.promise, r.operations, what})
	r.changed, r.last = false, r.promise
}

// workload uses every function of a store. Its order and its prompts are drawn from rng. Each
// workload is short, because the time to check a crash grows with the stored pages; many
// workloads run instead.
func (r *crashRecord) workload(rng *rand.Rand) {
	prompts := make([][]int32, 4)
	for i := range prompts {
		prompts[i] = prompt(1+i, testTokens+1+rng.IntN(testTokens-1))
	}
	r.open()
	defer func() { r.close() }()
	steps := []func(){
		func() { r.extendTail(rng, prompts[0]) },
		func() { r.overwrite(rng, prompts[1]) },
		func() { r.quarantineAndRepair(rng, prompts[2]) },
		func() { r.dropFingerprint() },
		func() { r.close(); r.open() },
	}
	rng.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	// The local tier outgrows its budget: the oldest pages move down, from each chain's end.
	for _, step := range steps {
		step()
	}
	// Pages that have moved down move up again, and others move down.
	r.flush()
	for _, tokens := range prompts[:3] {
		r.read(tokens)
	}
	// The remote tier outgrows its budget: pages are deleted.
	r.put(tinySections, prompts[3])
	r.flush()
	for i := 0; r.s.Stats().Evicted == 0; i++ {
		r.put(tinySections, prompt(20+i, 2*testTokens))
		r.flush()
	}
}

// extendTail puts a tail, a tail that branches off, and a tail that extends the first one and
// replaces it.
func (r *crashRecord) extendTail(rng *rand.Rand, tokens []int32) {
	full := len(tokens) / testTokens * testTokens
	short := append([]int32{}, tokens[:full+1]...)
	r.put(tinySections, short)
	r.put(tinySections, append(short[:full:full], prompt(50+rng.IntN(5), 2)...))
	r.put(tinySections, append(short[:full+1:full+1], prompt(60, testTokens-2)...))
}

// overwrite puts pages again, with the same and with other sections.
func (r *crashRecord) overwrite(rng *rand.Rand, tokens []int32) {
	r.put(tinySections, tokens)
	r.put(tinySections, tokens)
	r.put(otherSections, tokens)
	if rng.IntN(2) == 0 {
		r.put(tinySections, tokens)
	}
}

// quarantineAndRepair damages a page, finds the damage by a read or by a tool, and computes
// the page again, once each.
func (r *crashRecord) quarantineAndRepair(rng *rand.Rand, tokens []int32) {
	r.put(tinySections, tokens)
	pages := pagesFor(r.t, r.o, tinySections, tokens)
	for _, find := range []func(){func() { r.read(tokens) }, r.repair} {
		r.damage(pages[rng.IntN(len(pages))], rng.IntN(8*tinyPage))
		r.point("damage")
		find()
		r.put(tinySections, tokens)
	}
}

// repair runs the operations of tools on the roots of a server.
func (r *crashRecord) repair() {
	for _, tool := range []func(*Root) error{
		repair,
		func(root *Root) error {
			_, err := root.GC(ctx, GCOptions{})
			return err
		},
	} {
		root, err := OpenRoot(ctx, RootOptions{Local: r.o.Local, Remote: r.o.Remote, FS: r.inj})
		require.NoError(r.t, err)
		require.NoError(r.t, tool(root))
		require.NoError(r.t, root.Close())
	}
}

// dropFingerprint stores pages of another model and reclaims them.
func (r *crashRecord) dropFingerprint() {
	other := r.o
	other.Fingerprint = testFingerprint(9)
	s, err := Open(ctx, other)
	require.NoError(r.t, err)
	for _, p := range pagesFor(r.t, other, tinySections, prompt(90, testTokens+2)) {
		require.NoError(r.t, s.Put(ctx, p))
	}
	require.NoError(r.t, s.Close())
	found, err := recount(ctx, r.s)
	require.NoError(r.t, err)
	_, err = r.s.Reclaim(ctx, found, func(u FingerprintUsage) bool { return u.Fingerprint == other.Fingerprint })
	require.NoError(r.t, err)
}

// crashCase is one way of crashing.
type crashCase struct {
	keep   float64
	seed   uint64
	spare  string // the root that loses nothing, or ""
	demote bool   // the store has its old budget afterwards
	again  bool   // a second crash follows after the store was opened
}

// cases lists the ways of crashing at the n-th point. Without unsynced data one seed is
// enough. In a normal run the tiers crash alone in turns; a long run takes every way.
func (r *crashRecord) cases(n int) []crashCase {
	cases := []crashCase{{keep: 1, demote: true}, {keep: 0, demote: true, again: r.long || n%4 == 0}}
	for seed := range uint64(crashSeeds) {
		cases = append(cases, crashCase{keep: 0.5, seed: seed})
	}
	for i, spare := range []string{r.o.Local.Root, r.o.Remote.Root} {
		for seed := range uint64(crashSeeds + 1) {
			if !r.long && int(seed)*2+i != n%(2*crashSeeds+2) {
				continue
			}
			c := crashCase{keep: 0.5, seed: seed, spare: spare, demote: seed%2 == 0}
			if seed == crashSeeds {
				c.keep = 0
			}
			cases = append(cases, c)
		}
	}
	return cases
}

// checkAll crashes at every point in every way, reports the first few states that break the
// promise, and returns the number of states checked.
func (r *crashRecord) checkAll() int64 {
	var next, states, failures atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := next.Add(1) - 1; i < int64(len(r.points)) && failures.Load() < 5; i = next.Add(1) - 1 {
				at := &r.points[i]
				for _, c := range r.cases(int(i)) {
					n, err := at.check(c, r.o)
					states.Add(n)
					if err != nil {
						failures.Add(1)
						r.t.Errorf("operation %d (%s) with %v of the rest kept, seed %d, sparing %q: %v",
							at.nth, at.what, c.keep, c.seed, c.spare, err)
						break
					}
				}
			}
		}()
	}
	wg.Wait()
	return states.Load()
}

// check crashes and opens the store; in some cases it crashes a second time afterwards, and
// keeps no unsynced data. check returns the number of crashes.
func (at *crashPoint) check(c crashCase, o Options) (int64, error) {
	var spare []string
	if c.spare != "" {
		spare = append(spare, c.spare)
	}
	mem := at.mem.Crash(c.keep, uint64(at.nth)<<8|c.seed, spare...)
	if err := at.promise.check(mem, o, reopening{demote: c.demote}); err != nil || !c.again {
		return 1, err
	}
	if err := at.promise.check(mem.Crash(0, 0), o, reopening{again: true}); err != nil {
		return 2, fmt.Errorf("a second crash, after opening and writing: %w", err)
	}
	return 2, nil
}
