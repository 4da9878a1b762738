package share

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// A Mix is how requests come.
type Mix struct {
	Hot          float64 // share of the requests of a burst that one server gets; servers take turns
	Small, Large int     // prompts are between these, in tokens
}

// A Request comes at a time, whether or not earlier ones have ended.
type Request struct {
	At             time.Duration
	Server         int
	Conversation   int // that its prompt goes on with; a new one has a number of its own
	Prompt, Answer int // tokens
}

const (
	burstEvery = 30 * time.Second
	burstTakes = 10 * time.Second // in which the requests of a burst come

	// thinking is how long after a request its conversation goes on at the earliest.
	thinking = 15 * time.Second
	// nextTurns is the share of requests that go on with a conversation of their server.
	nextTurns = 0.3
	turnMost  = 512 // new tokens of a next turn
	recent    = 4   // conversations that may go on
)

// Requests are those of a mix, by time. A seed has the same ones always.
func Requests(c Config, m Mix, seed uint64) []Request {
	r := rand.New(rand.NewPCG(seed, uint64(m.Large)<<32|uint64(m.Hot*1000)))
	var all []Request
	for burst := range c.Bursts {
		tokens := int(c.Load * c.Prefill * burstEvery.Seconds())
		var some []Request
		for tokens > 0 {
			q := Request{
				At:     time.Duration(burst)*burstEvery + time.Duration(r.Int64N(int64(burstTakes))),
				Server: burst % c.Servers, Prompt: m.prompt(r), Answer: answerLeast + r.IntN(answerMost-answerLeast+1),
			}
			if r.Float64() >= m.Hot {
				q.Server = (q.Server + 1 + r.IntN(c.Servers-1)) % c.Servers
			}
			tokens -= q.Prompt
			some = append(some, q)
		}
		slices.SortFunc(some, func(a, b Request) int { return int(a.At - b.At) })
		all = append(all, some...)
	}
	m.converse(r, all)
	return all
}

// prompt is the length of one: short ones are as frequent as long ones on a scale of logarithms.
func (m Mix) prompt(r *rand.Rand) int {
	return int(float64(m.Small) * math.Pow(float64(m.Large)/float64(m.Small), r.Float64()))
}

// converse lets some requests go on with an earlier one of their server.
func (m Mix) converse(r *rand.Rand, all []Request) {
	for i := range all {
		q := &all[i]
		q.Conversation = i
		if r.Float64() >= nextTurns {
			continue
		}
		var before []Request
		for _, old := range all[:i] {
			if old.Server == q.Server && q.At-old.At >= thinking && old.Prompt+old.Answer+turnMost <= m.Large {
				before = append(before, old)
			}
		}
		if len(before) > 0 {
			old := before[len(before)-1-r.IntN(min(len(before), recent))]
			q.Conversation, q.Prompt = old.Conversation, old.Prompt+old.Answer+1+r.IntN(turnMost)
		}
	}
}
