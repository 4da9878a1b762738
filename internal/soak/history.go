package soak

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// Kind is the kind of a user's request.
type Kind int

const (
	// Start begins a conversation, which replaces an older one.
	Start Kind = iota
	// Turn adds a message to a conversation.
	Turn
	// Regenerate wants another answer to the last message.
	Regenerate
	// Branch replaces an earlier message; the messages after it are gone.
	Branch
	// Document is a text without a conversation around it, often longer than the context.
	Document
	// GiveUp adds a message, disconnects before the answer is complete, and takes the
	// message back.
	GiveUp

	kinds = int(GiveUp) + 1
)

func (k Kind) String() string {
	return [...]string{"start", "turn", "regenerate", "branch", "document", "give up"}[k]
}

// Event is an event of the server.
type Event int

const (
	// Nothing happens.
	Nothing Event = iota
	// Unload drops the model, as an expired keep_alive does.
	Unload
	// Kill ends server and runner with SIGKILL between two rounds.
	Kill
	// KillStored is Kill after all computed pages are stored.
	KillStored
	// KillRunner ends the runner alone with SIGKILL.
	KillRunner
	// Crash is Kill in the middle of the round, whose requests are then repeated.
	Crash

	events = int(Crash) + 1
)

func (e Event) String() string {
	return [...]string{"nothing", "unload", "kill", "kill once stored", "kill runner", "crash"}[e]
}

// Request is one user's request.
type Request struct {
	Kind    Kind
	Chat    int    // index of the conversation; not for a Document
	Message int    // of a Branch: number of the user's message that is replaced
	Seed    int64  // seed of the words
	Words   int    // words of the new message, one token each
	Image   uint64 // seed of the message's image; 0: no image
	Answer  int    // tokens of the answer
	// Leave lists the client's disconnections before the attempt that stays: each entry is a
	// number of answer tokens after which the client disconnects, 0 for at once.
	Leave []int
	// Cuts are the positions at which the answer is compared with teacher forcing, as shares
	// of its length.
	Cuts []float64
}

func (r Request) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", r.Kind)
	if r.Kind != Document {
		fmt.Fprintf(&b, " chat %d", r.Chat)
	}
	if r.Kind == Branch {
		fmt.Fprintf(&b, " at message %d", r.Message)
	}
	if r.Words > 0 {
		fmt.Fprintf(&b, ", %d words of seed %d", r.Words, r.Seed)
	}
	if r.Image != 0 {
		fmt.Fprintf(&b, ", image %d", r.Image)
	}
	fmt.Fprintf(&b, ", answer of %d", r.Answer)
	if len(r.Leave) > 0 {
		fmt.Fprintf(&b, ", left after %v", r.Leave)
	}
	return b.String()
}

// Round is a set of concurrent requests after an event. A Crash happens during the round:
// when the first answer has CrashAfter tokens.
type Round struct {
	Event      Event
	CrashAfter int
	Requests   []Request
}

func (r Round) String() string {
	asked := make([]string, len(r.Requests))
	for i, request := range r.Requests {
		asked[i] = request.String()
	}
	text := strings.Join(asked, " | ")
	switch r.Event {
	case Nothing:
		return text
	case Crash:
		return fmt.Sprintf("[crash after %d tokens] %s", r.CrashAfter, text)
	default:
		return fmt.Sprintf("[%s] %s", r.Event, text)
	}
}

// History is a sequence of rounds.
type History struct {
	Seed   uint64
	System int64 // seed of the message that all conversations begin with
	Rounds []Round
}

// Until prints the last few rounds up to a given one.
func (h History) Until(round, last int) string {
	var b strings.Builder
	for i := max(0, round-last+1); i <= round && i < len(h.Rounds); i++ {
		fmt.Fprintf(&b, "  round %d: %s\n", i, h.Rounds[i])
	}
	return b.String()
}

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
