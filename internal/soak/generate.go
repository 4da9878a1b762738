package soak

import "math/rand/v2"

// Config is the size of a history. All fields except Images must be set.
type Config struct {
	Rounds  int
	Chats   int  // most conversations at a time; more than slots, so that conversations compete
	Slots   int  // most requests of a round
	Context int  // tokens of a slot; conversations and documents outgrow it now and then
	Images  bool // some messages have an image
}

// Sizes, in tokens.
const (
	messageMin, messageMax = 4, 60
	answerMin, answerMax   = 4, 40
	longAnswer             = 120 // most tokens of the few answers that may reach the end of the context
)

// Chances: 1 in n.
const (
	longMessageIn = 8
	longAnswerIn  = 12
	leaveIn       = 6
	imageIn       = 4
	eventIn       = 4 // rounds
	cutsPerAnswer = 2
)

// New generates a history. Equal seeds and configs give equal histories; with fewer rounds,
// the history is a prefix of the longer one.
func New(seed uint64, config Config) History {
	g := generator{Config: config, Rand: rand.New(rand.NewPCG(seed, 0)), messages: make([]int, config.Chats)}
	h := History{Seed: seed, System: g.seed()}
	for i := range config.Rounds {
		h.Rounds = append(h.Rounds, g.round(i == 0))
	}
	return h
}

// generator keeps the number of messages of each conversation, so that it makes only
// possible requests.
type generator struct {
	Config
	*rand.Rand
	messages []int // number of the user's messages
}

func (g *generator) seed() int64 { return int64(g.Uint32()) }

// between draws a number from low to high, both included.
func (g *generator) between(low, high int) int { return low + g.IntN(high-low+1) }

func (g *generator) oneIn(n int) bool { return g.IntN(n) == 0 }

func (g *generator) round(first bool) Round {
	var r Round
	if !first && g.oneIn(eventIn) {
		r.Event = Event(g.between(int(Unload), events-1))
	}
	if r.Event == Crash {
		r.CrashAfter = g.IntN(answerMin)
	}
	for _, chat := range g.Perm(g.Chats)[:g.between(1, min(g.Slots, g.Chats))] {
		r.Requests = append(r.Requests, g.request(chat))
	}
	return r
}

func (g *generator) request(chat int) Request {
	r := Request{Kind: g.kind(g.messages[chat]), Chat: chat, Seed: g.seed(), Answer: g.between(answerMin, answerMax)}
	if g.oneIn(longAnswerIn) {
		r.Answer = g.between(answerMax, longAnswer)
	}
	switch r.Kind {
	case Start:
		g.messages[chat] = 1
	case Turn:
		g.messages[chat]++
	case Branch:
		r.Message = g.IntN(g.messages[chat] - 1)
		g.messages[chat] = r.Message + 1
	}
	r.Words = g.words(r.Kind)
	if g.Images && r.Kind != Regenerate && r.Kind != Document && g.oneIn(imageIn) {
		r.Image = g.Uint64N(6) + 1 // few images, so that images are repeated
	}
	switch {
	case r.Kind == GiveUp:
		r.Leave = []int{g.IntN(r.Answer)}
	case g.oneIn(leaveIn):
		for range g.between(1, 2) {
			r.Leave = append(r.Leave, g.IntN(r.Answer))
		}
	}
	for range cutsPerAnswer {
		r.Cuts = append(r.Cuts, g.Float64())
	}
	return r
}

// kind draws a kind of request that is possible in a conversation with that number of
// messages.
func (g *generator) kind(messages int) Kind {
	if messages == 0 {
		return Start
	}
	switch n := g.IntN(100); {
	case n < 10:
		return Start
	case n < 15:
		return Document
	case n < 22:
		return GiveUp
	case n < 40:
		return Regenerate
	case n < 58 && messages > 1:
		return Branch
	default:
		return Turn
	}
}

func (g *generator) words(kind Kind) int {
	switch {
	case kind == Regenerate:
		return 0
	case kind == Document:
		return g.between(g.Context/2, g.Context*5/4)
	case g.oneIn(longMessageIn):
		return g.between(messageMax, g.Context/2)
	default:
		return g.between(messageMin, messageMax)
	}
}
