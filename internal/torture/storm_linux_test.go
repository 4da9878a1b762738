package torture

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// These variables are those of `make torture`; see CONTRIBUTING.md.
const (
	pagesEnv   = "KVTIER_TORTURE_PAGES"
	seedEnv    = "KVTIER_TORTURE_SEED"
	shortPages = 600
)

const (
	refusedLine = "kv page is not usable" // of the store
	brokenLine  = "kv tier: page not read"

	nameColumns = 33 // of progress

	blockRounds = 150 // between two starts of the server, whose log is kept in memory
	stormTokens = 3   // of an answer

	tellParts = 20 // lines of progress
)

// stormPrompts are the lengths of the conversations of a storm, in pages. A short storm has some
// of the short ones.
var stormPrompts = []int{12, 16, 30, 120, 120, 120, 120}

const shortChats = 3

// campaign counts the work of all storms of a run.
type campaign struct {
	seed   uint64
	target int64
	done   atomic.Int64 // faulted pages
	shown  *progress.Display
	step   *progress.Step // of the storms
	begin  sync.Once      // of step
	began  time.Time
	told   atomic.Int64 // parts of tellParts of which a line was printed

	mu       sync.Mutex
	faulted  map[string]int // pages, by fault
	restores int            // with a fault
	whole    int            // without one
	tokens   int            // restored, by answers that say so
	refused  int            // pages, by the servers' logs
	starts   int
}

// theCampaign is that of all tests of the process.
var theCampaign = sync.OnceValue(func() *campaign {
	c := &campaign{seed: number(seedEnv, 1), target: int64(number(pagesEnv, shortPages)), faulted: make(map[string]int), began: time.Now()}
	if os.Getenv(pagesEnv) != "" {
		c.shown = progress.New(os.Stderr, nameColumns)
	}
	return c
})

// number is the value of a variable, or another one where it is not set.
func number(variable string, unset uint64) uint64 {
	text := os.Getenv(variable)
	if text == "" {
		return unset
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", variable, err)
		os.Exit(2)
	}
	return n
}

func TestMain(m *testing.M) {
	code := m.Run()
	c := theCampaign()
	if c.step != nil {
		c.step.End(fmt.Sprintf("%d restores", c.restores), nil)
	}
	c.shown.Close()
	if c.done.Load() > 0 {
		c.print()
	}
	os.Exit(code)
}

// print prints the counts.
func (c *campaign) print() {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Printf("faulted pages: %d, in %d restores of stored conversations; %d restores without a fault between them\n", c.done.Load(), c.restores, c.whole)
	fmt.Printf("tokens restored: %d; pages refused, by the servers' logs: %d; starts of servers: %d; seed %d\n", c.tokens, c.refused, c.starts, c.seed)
	for _, name := range slices.Sorted(maps.Keys(c.faulted)) {
		fmt.Printf("  %8d %s\n", c.faulted[name], name)
	}
}

// count notes faulted pages, and reports whether the storm goes on until goal.
func (c *campaign) count(name string, pages int) {
	c.mu.Lock()
	c.faulted[name] += pages
	c.mu.Unlock()
	done := min(c.done.Add(int64(pages)), c.target)
	c.step.Progress(done, c.target)
	if c.shown != nil {
		c.tell(done)
	}
}

// tell prints a line for each twentieth of a long storm: a log has no progress bar.
func (c *campaign) tell(done int64) {
	part := done * tellParts / max(1, c.target)
	if last := c.told.Load(); part > last && c.told.CompareAndSwap(last, part) {
		fmt.Fprintf(os.Stderr, "faulted pages: %d of %d, %s\n", done, c.target, time.Since(c.began).Round(time.Second))
	}
}

func TestLlamaStorm(t *testing.T)  { storm(t, llama) }
func TestOllamaStorm(t *testing.T) { storm(t, ollama) }

// storm damages, removes and exchanges pages of conversations at random, and asks for these
// conversations. The model with rows for all tokens takes the rest of the pages.
func storm(t *testing.T, on subject) {
	t.Parallel()
	c := theCampaign()
	c.begin.Do(func() { c.step = c.shown.Step("faulted pages") })
	for _, part := range []struct {
		name  string
		setup setup
		turns bool
		share int64 // one in so many of the target; 0: until the target is reached
	}{
		{"q8_0", setup{model: on.dense, keys: "q8_0"}, false, 40},
		{"hybrid", hybrid(on), true, 40},
		{"window", windowed(on), true, 40},
		{"dense", setup{model: quick(on.dense)}, false, 0},
	} {
		goal := c.target
		if part.share > 0 {
			goal = c.target / part.share
			if c.target <= shortPages {
				continue // the cases have these models, too
			}
		}
		if !t.Run(part.name, func(t *testing.T) {
			part.setup.root = filepath.Join(folder(t), "pages")
			s := &stormy{rig: newRig(t, on, part.setup), campaign: c, rng: rand.New(rand.NewPCG(c.seed, uint64(len(part.name))))}
			s.prepare(part.turns)
			s.play(t, goal, part.share == 0)
		}) {
			return
		}
	}
}

// quick is a smaller model, for more restores.
func quick(shape testmodel.Shape) testmodel.Shape {
	shape.Layers, shape.Embed, shape.Heads = 1, 32, 1
	return shape
}

// folder is a folder in memory, if there is one: a storm writes many GB.
func folder(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "kvtier-torture-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// stormy is a storm on a rig.
type stormy struct {
	*rig
	*campaign
	rng   *rand.Rand
	chats []*chat
	pages []pageFile // of all chats
	last  *chat
	mine  int64 // faulted pages of this storm
}

// prepare stores the conversations.
func (s *stormy) prepare(turns bool) {
	lengths := stormPrompts
	if s.target <= shortPages {
		lengths = lengths[:shortChats]
	}
	for i, n := range lengths {
		p := write(s.t, s.setup.model, n*pageTokens+1, int64(i+1))
		c := (*chat)(nil)
		if turns {
			c = s.converse(p, write(s.t, s.setup.model, 2*pageTokens, int64(100+i)), stormTokens)
		} else {
			c = s.store(p, stormTokens)
		}
		require.NotEmpty(s.t, c.pages)
		s.chats, s.pages = append(s.chats, c), append(s.pages, c.pages...)
	}
	require.Error(s.t, s.wrong(s.chats[0], answer{logprobs: s.chats[1].want[0]}), "two conversations have one answer")
	if !turns {
		s.forge(s.chats[0])
	}
}

// forge requires that wrong rows of a page show in the answer.
func (r *rig) forge(c *chat) {
	r.t.Helper()
	for i, p := range c.pages[:4] {
		require.NoError(r.t, r.ours.unload())
		r.put(p.path, sealed(p.content, otherRows))
		a := r.ask(c.prompt, c.tokens)
		r.heal(c)
		if a.restored > i*pageTokens { // a busy machine may have given the restore up
			require.Error(r.t, r.wrong(c, a), "wrong rows of page %d do not show", i)
			require.NoError(r.t, r.ours.unload())
			return
		}
	}
	require.Fail(r.t, "no page was restored")
}

// over reports whether a storm has done its part.
func (s *stormy) over(goal int64, all bool) bool {
	if all {
		return s.done.Load() >= goal
	}
	return s.mine >= goal
}

// play plays blocks of rounds. The server is another one in each block.
func (s *stormy) play(t *testing.T, goal int64, all bool) {
	require.NoError(t, s.ours.close())
	for block := 0; !s.over(goal, all) && !t.Failed(); block++ {
		t.Run(fmt.Sprint("block ", block), func(t *testing.T) {
			s.t = t
			s.ours = s.on.start(t, s.setup)
			for round := 0; round < blockRounds && !s.over(goal, all); round++ {
				if round == blockRounds/2 {
					require.NoError(t, s.ours.crash())
				}
				s.round()
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.refused += s.ours.refused()
			s.starts++
		})
	}
}

// round faults pages of a conversation, asks for the conversation, and heals the pages.
func (s *stormy) round() {
	c := s.chats[s.rng.IntN(len(s.chats))]
	if c == s.last {
		return // the engine holds it
	}
	s.last = c
	chosen := s.choose(c)
	var reading sync.WaitGroup
	var answered atomic.Bool
	if len(chosen) > 0 && s.rng.IntN(4) == 0 {
		s.whileRead(&reading, &answered, chosen)
	} else {
		for _, p := range chosen {
			s.fault(storedFaults[s.rng.IntN(len(storedFaults))], s.rng, p)
		}
	}
	a := s.ask(c.prompt, c.tokens)
	answered.Store(true)
	reading.Wait()
	s.require(c, a, fmt.Sprintf("%d of %d pages are faulted", len(chosen), len(c.pages)))
	s.mine += int64(len(chosen)) // at most
	for _, p := range chosen {
		require.NoError(s.t, put(filepath.Dir(s.root), p.path, p.content))
	}
	s.forgive()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens += a.restored
	if len(chosen) == 0 {
		s.campaign.whole++
	} else {
		s.restores++
	}
}

// choose returns some pages of a conversation: none, one, a few, half, or all of them.
func (s *stormy) choose(c *chat) []pageFile {
	pages := slices.Clone(c.pages)
	s.rng.Shuffle(len(pages), func(i, j int) { pages[i], pages[j] = pages[j], pages[i] })
	n := len(pages)
	switch s.rng.IntN(8) {
	case 0:
		n = 0
	case 1:
		n = 1
	case 2:
		n = 1 + s.rng.IntN(min(8, n))
	case 3:
		n /= 2
	}
	return pages[:n]
}

// fault faults a page.
func (s *stormy) fault(f fault, rng *rand.Rand, p pageFile) {
	if err := f.apply(rng, p, s.pages, filepath.Dir(s.root)); err != nil && !os.IsNotExist(err) {
		require.NoError(s.t, err, f.name)
	}
	s.count(f.name, 1)
}

// whileRead faults pages while the server reads some of them.
func (s *stormy) whileRead(reading *sync.WaitGroup, answered *atomic.Bool, pages []pageFile) {
	rng := rand.New(rand.NewPCG(s.rng.Uint64(), 1))
	f := readFaults[s.rng.IntN(len(readFaults))]
	late := time.Duration(s.rng.IntN(3000)) * time.Microsecond
	reading.Add(1)
	go func() {
		defer reading.Done()
		<-time.After(late) // moves the faults along the restore; nothing waits for it
		for _, p := range pages {
			if answered.Load() {
				return
			}
			if err := f.apply(rng, p, s.pages, filepath.Dir(s.root)); err == nil {
				s.count(f.name, 1)
			}
		}
	}()
}
