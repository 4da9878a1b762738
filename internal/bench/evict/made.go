package evict

import (
	"cmp"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"github.com/kvtier/kvtier/internal/bench/trace"
)

// Default is the trace of coding agents.
const Default = "agents"

// made are the traces that are made of random numbers, and what their headings say.
var made = map[string]struct {
	make  func(*maker)
	about string
}{
	"agents": {agents, agentsAbout},
	"home":   {home, homeAbout},
}

// open returns a trace, a file or a made one, and its name for people.
func open(name string) (requests []trace.Request, heading string, err error) {
	if trace, ok := made[name]; ok {
		m := &maker{rng: rand.New(rand.NewPCG(1, 1))}
		trace.make(m)
		return m.sorted(), name + " (made: " + trace.about + ")", nil
	}
	requests, err = trace.Read(name)
	return requests, filepath.Base(name), err
}

// Seconds.
const (
	minute = 60
	hour   = 60 * minute
	day    = 24 * hour
)

// maker makes requests, in any order.
type maker struct {
	rng      *rand.Rand
	blocks   int32 // made so far
	requests []trace.Request
}

func (m *maker) sorted() []trace.Request {
	slices.SortStableFunc(m.requests, func(a, b trace.Request) int { return cmp.Compare(a.At, b.At) })
	return m.requests
}

// about is a number of tokens near a median: in two of three cases less than e^spread times as many or as few.
func (m *maker) about(median int, spread float64) int {
	return 1 + int(float64(median)*math.Exp(m.rng.NormFloat64()*spread))
}

// soon is a time with a mean; longer ones are rarer.
func (m *maker) soon(mean float64) float64 { return m.rng.ExpFloat64() * mean }

// times is a whole number of at least 1 with a mean; larger ones are rarer.
func (m *maker) times(mean int) int { return 1 + int(m.soon(float64(mean-1))+0.5) }

func (m *maker) chance(p float64) bool { return m.rng.Float64() < p }

// text is what a prompt says.
type text struct {
	tokens int
	blocks []int32
}

// longer is a text with more tokens behind it. A last block that was not full is another one then.
func (m *maker) longer(t text, tokens int) text {
	whole := t.tokens / trace.BlockTokens
	t.tokens += tokens
	t.blocks = slices.Clone(t.blocks[:whole])
	for len(t.blocks)*trace.BlockTokens < t.tokens {
		m.blocks++
		t.blocks = append(t.blocks, m.blocks)
	}
	return t
}

// ask adds a prompt.
func (m *maker) ask(at float64, t text) {
	m.requests = append(m.requests, trace.Request{At: at, Tokens: t.tokens, Blocks: t.blocks})
}
