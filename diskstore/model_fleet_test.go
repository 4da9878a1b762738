package diskstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/guard"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// fleetTime is the duration of the long form of TestModelOfAFleet.
const fleetTime = 5 * time.Minute

// TestModelOfAFleet drives three processes on two hosts: two share a local tier, all share a
// remote one. Each has its own clock, which jumps, and loses the remote tier in its own ways.
// Processes store, read, remove and count at the same time; files are damaged; disks fail.
// After every step a ledger's figure is at least the bytes of the files, no budget is
// exceeded, and no read returns rows that were not stored. At the end, after a count, a
// ledger's figure is exact.
func TestModelOfAFleet(t *testing.T) {
	statesOneByOne(t)
	var steps atomic.Int64
	check := func() {
		rapid.Check(t, func(rt *rapid.T) {
			f := newFleet(rt)
			defer f.end()
			rt.Repeat(map[string]func(*rapid.T){
				"put":        func(rt *rapid.T) { f.act(rt, 1) },
				"at once":    func(rt *rapid.T) { f.act(rt, 3) },
				"clock":      f.clock,
				"goes away":  f.goesAway,
				"comes back": func(rt *rapid.T) { f.anyHost(rt).comesBack() },
				"damage":     f.damage,
				"bad disk":   f.badDisk,
				"reopen":     func(rt *rapid.T) { h := f.anyHost(rt); h.comesBack(); h.close(); h.open() },
				"":           func(*rapid.T) { steps.Add(1); f.holds(); f.steps++ },
			})
		})
	}
	check()
	for until := time.Now().Add(fleetTime); longRun() && time.Now().Before(until) && !t.Failed(); {
		check()
	}
	fmt.Printf("steps of the fleet: %d\n", steps.Load())
}

const (
	fleetLocal  = 9 * tinyPage
	fleetRemote = 13 * tinyPage
)

// fleet is all hosts and their shared state.
type fleet struct {
	t     require.TestingT
	mem   *vfs.Mem
	hosts []*fleetHost
	roots map[string]int64 // their budgets
	steps int              // actions done
}

// fleetHost is one process with its clock and its access to the tiers.
type fleetHost struct {
	*fleet
	o     Options
	inj   *vfs.Injector
	s     *Store
	ahead atomic.Int64 // of the clock, in ns
	gate  *vfs.Gate    // the gate at which operations of the remote tier hang; nil for none
}

func newFleet(t require.TestingT) *fleet {
	f := &fleet{t: t, mem: vfs.NewMem(1 << 30), roots: make(map[string]int64)}
	root := string(filepath.Separator)
	remote := filepath.Join(root, "remote")
	f.roots[remote] = fleetRemote
	for _, name := range []string{"shared", "shared", "own"} {
		local := filepath.Join(root, name)
		f.roots[local] = fleetLocal
		h := &fleetHost{fleet: f, inj: vfs.Inject(f.mem)}
		h.inj.Watch(func(vfs.Op, ...string) { // another host may act between any two operations
			for range rand.IntN(8) {
				runtime.Gosched()
			}
		})
		h.o = Options{
			FS: h.inj, Fingerprint: testFingerprint(1), PageTokens: 3,
			Local:         TierConfig{Root: local, BudgetBytes: fleetLocal},
			Remote:        TierConfig{Root: remote, BudgetBytes: fleetRemote},
			RemoteTimeout: time.Minute, ReadTimeout: time.Minute,
		}
		f.hosts = append(f.hosts, h)
	}
	for dir := range f.roots {
		require.NoError(t, f.mem.Mkdir(dir))
	}
	for _, h := range f.hosts {
		h.open()
	}
	return f
}

func (f *fleet) anyHost(rt *rapid.T) *fleetHost {
	return f.hosts[rapid.IntRange(0, len(f.hosts)-1).Draw(rt, "host")]
}

func (h *fleetHost) open() {
	s, err := Open(ctx, h.o)
	require.NoError(h.t, err)
	require.NoError(h.t, s.Flush(ctx))
	s.now = func() time.Time { return time.Now().Add(time.Duration(h.ahead.Load())) }
	h.s = s
}

func (h *fleetHost) close() { require.NoError(h.t, h.s.Close()) }

// someAct are the actions of hosts, most of them the actions of users.
var someAct = rapid.SampledFrom([]string{"put", "put", "put", "put", "read", "read", "read", "gc", "below", "count", "rm"})

// act runs actions of hosts: of several hosts, or several of one host at the same time.
func (f *fleet) act(rt *rapid.T, times int) {
	var all sync.WaitGroup
	wrong := make(chan error, times)
	tokens, what := someTokens.Draw(rt, "tokens"), someAct.Draw(rt, "what")
	alike := rapid.Bool().Draw(rt, "all alike")
	for range times {
		if !alike {
			tokens, what = someTokens.Draw(rt, "tokens"), someAct.Draw(rt, "what")
		}
		h, tokens, what := f.anyHost(rt), tokens, what
		sections := anySections.Draw(rt, "sections")
		does := map[string]func(){
			"put":  func() { h.put(sections, tokens) },
			"read": func() { wrong <- h.read(tokens) },
			"rm": func() {
				_, _ = h.s.local.purge(ctx, purge{fingerprint: h.o.Fingerprint, removed: func(tier.Info) {}})
			},
			"gc":    func() { h.removeAll(h.s.local, len(tokens)) },
			"below": func() { h.removeAll(h.s.remote, len(tokens)) },
			"count": func() { _, _ = recount(ctx, h.s) },
		}
		all.Add(1)
		go func() {
			defer all.Done()
			does[what]()
		}()
	}
	all.Wait()
	close(wrong)
	for err := range wrong {
		require.NoError(rt, err)
	}
}

// put stores a prompt's pages as far as room and the disk allow.
func (h *fleetHost) put(sections []pagefile.Section, tokens []int32) {
	for _, p := range tinyPages(h.t, h.o, sections, tokens) {
		if h.s.Put(ctx, p) != nil {
			return
		}
	}
}

// read reads the pages found of a prompt. Pages may be gone, but rows must not be wrong.
func (h *fleetHost) read(tokens []int32) error {
	for _, ref := range h.s.Find(ctx, Prompt{Tokens: tokens}).Exact {
		l, err := pagefile.NewLayout(tinySections, ref.Stored)
		if err != nil {
			return err
		}
		got, want := make([]byte, l.Size()), make([]byte, l.Size())
		if h.s.Read(ctx, ref, tokens[ref.Start:int(ref.Start)+ref.Tokens], l, Into{Rows: got}) == nil {
			if fillRows(l, ref.Key, want); !bytes.Equal(want, got) {
				return fmt.Errorf("page %v was read without an error, and is wrong", ref.Key)
			}
		}
	}
	return nil
}

// removeAll evicts pages as a collection with an old listing does.
func (h *fleetHost) removeAll(lv *level, pages int) {
	var infos []tier.Info
	if lv.files.List(ctx, func(info tier.Info) { infos = append(infos, info) }) == nil {
		lv.room.EvictAll(ctx, infos, int64(pages)*tinyPage, tinyPage)
	}
}

// clock makes one host's clock jump.
func (f *fleet) clock(rt *rapid.T) {
	jump := rapid.SampledFrom([]time.Duration{0, 0, 40 * time.Second, 3 * time.Hour, -3 * time.Hour, 50 * time.Hour, -50 * time.Hour, 365 * 24 * time.Hour})
	f.anyHost(rt).ahead.Store(int64(jump.Draw(rt, "ahead")))
}

// goesAway takes the remote tier from one host.
func (f *fleet) goesAway(rt *rapid.T) {
	h := f.anyHost(rt)
	h.comesBack()
	rule := vfs.Rule{Path: regexp.MustCompile("^" + regexp.QuoteMeta(h.o.Remote.Root))}
	switch how := rapid.SampledFrom([]error{syscall.EIO, syscall.ENOENT, syscall.ESTALE, syscall.EROFS, tier.ErrTierTimeout}).Draw(rt, "how"); how {
	case tier.ErrTierTimeout:
		h.gate = vfs.NewGate()
		rule.Gate = h.gate
		h.s.guard.LookupIn, h.s.guard.StepIn = 10*time.Millisecond, 10*time.Millisecond
	case syscall.EROFS:
		rule.Ops, rule.Err = []vfs.Op{vfs.OpCreate, vfs.OpMkdir, vfs.OpRename, vfs.OpRemove, vfs.OpChtimes, vfs.OpLock}, how
	default:
		rule.Err = how
	}
	h.inj.Add(rule)
}

// comesBack returns the remote tier after hanging operations have ended.
func (h *fleetHost) comesBack() {
	h.inj.Reset()
	if h.gate != nil {
		h.gate.Open()
		h.gate = nil
	}
	idle(h.s.guard)
	h.s.guard.LookupIn, h.s.guard.StepIn = time.Minute, time.Minute
	h.s.guard.Breaker.Success()
}

// idle waits until no worker runs and no file is left to be removed.
func idle(t *guard.Tier) {
	for {
		for _, workers := range []chan struct{}{t.Lookup, t.List, t.Transfer} {
			for range cap(workers) {
				workers <- struct{}{}
			}
			for range cap(workers) {
				<-workers
			}
		}
		if t.Leaving.Load() == 0 {
			return
		}
	}
}

// damage flips a bit of a page, or truncates its file.
func (f *fleet) damage(rt *rapid.T) {
	h := f.anyHost(rt)
	root := rapid.SampledFrom([]string{h.o.Local.Root, h.o.Remote.Root}).Draw(rt, "root")
	bit := rapid.IntRange(0, 8*tinyPage-1).Draw(rt, "bit")
	for _, p := range tinyPages(rt, h.o, tinySections, someTokens.Draw(rt, "tokens")) {
		_ = f.mem.Edit(filePath(root, placeOf(h.o, p)), func(data []byte) []byte {
			data[bit/8%len(data)] ^= 1 << (bit % 8)
			return data
		})
	}
}

// badDisk makes one operation of a host's local tier fail during a Put, and the removal of the
// file that it leaves as well.
func (f *fleet) badDisk(rt *rapid.T) {
	h := f.anyHost(rt)
	h.comesBack()
	local := regexp.MustCompile("^" + regexp.QuoteMeta(h.o.Local.Root))
	errno := rapid.SampledFrom([]syscall.Errno{syscall.EIO, syscall.ENOSPC}).Draw(rt, "errno")
	h.inj.Add(vfs.Rule{Path: local, Nth: rapid.IntRange(1, 60).Draw(rt, "operation"), Err: errno})
	if rapid.Bool().Draw(rt, "and remove") {
		h.inj.Add(vfs.Rule{Path: regexp.MustCompile(`\.tmp$`), Ops: []vfs.Op{vfs.OpRemove}, Err: syscall.EIO})
	}
	h.put(tinySections, someTokens.Draw(rt, "tokens"))
	require.NoError(rt, h.s.Flush(ctx))
	h.inj.Reset()
}

// holds requires the rules that hold after every step.
func (f *fleet) holds() {
	for _, h := range f.hosts {
		require.NoError(f.t, h.s.Flush(ctx))
		if h.gate == nil {
			idle(h.s.guard)
		}
	}
	for root, budget := range f.roots {
		there := f.occupied(root)
		require.LessOrEqual(f.t, there, budget, "%s is over its budget", root)
		if l := f.ledger(root); l.Counts > 0 && there > l.Figure() {
			// rapid runs a failure again for its message, and runs on after the action that failed:
			// goroutines do not fail again in the same way.
			fmt.Printf("after action %d the ledger of %s is too low: %d bytes are there; %+v\n%s", f.steps, root, there, *l, f.describe(root))
			require.FailNow(f.t, "the ledger is too low")
		}
	}
}

// end requires exact ledgers after every operation has ended and files are counted.
func (f *fleet) end() {
	for _, h := range f.hosts {
		h.comesBack()
		h.ahead.Store(0)
		h.close()
	}
	for _, h := range f.hosts[1:] {
		h.open()
		_, err := recount(ctx, h.s)
		require.NoError(f.t, err)
		h.close()
		for _, root := range []string{h.o.Local.Root, h.o.Remote.Root} {
			require.Equal(f.t, f.occupied(root), f.ledger(root).Figure(), root)
		}
	}
}

// occupied returns the bytes of the files below a root that count against its budget.
func (f *fleet) occupied(root string) int64 {
	found, err := walk(f.mem, root)
	require.NoError(f.t, err)
	return found.held
}

// describe lists the files below a root.
func (f *fleet) describe(root string) string {
	found, err := walk(f.mem, root)
	return fmt.Sprintf("%+v %v", found, err)
}

// ledger returns a root's ledger; zero for a missing one.
func (f *fleet) ledger(root string) *ledger.Ledger {
	path := filepath.Join(root, storetest.VersionDir, storetest.LedgerFile)
	info, err := f.mem.Lstat(path)
	if err != nil {
		return new(ledger.Ledger)
	}
	file, err := f.mem.Open(path)
	require.NoError(f.t, err)
	defer file.Close()
	content := make([]byte, info.Size())
	if _, err := file.ReadAt(content, 0); err != nil {
		require.NoError(f.t, errors.Join(err, fmt.Errorf("read %s", path)))
	}
	l, err := ledger.Decode(content)
	require.NoError(f.t, err)
	return l
}
