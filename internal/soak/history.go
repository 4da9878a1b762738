package soak

import (
	"fmt"
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
