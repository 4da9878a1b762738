package soak

import (
	"fmt"
	"strings"
)

// Kind is the kind of a user's request.
type Kind int

const (
	// Start begins a conversation, in the place of the one that was there.
	Start Kind = iota
	// Turn adds a message to a conversation.
	Turn
	// Regenerate wants another answer to the last message.
	Regenerate
	// Branch replaces an earlier message; the messages after it are gone.
	Branch
	// Document is a text without a conversation around it, often longer than the context.
	Document
	// GiveUp adds a message, goes away before the answer is complete, and takes the message
	// back.
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
	// KillStored is Kill after everything that was computed is stored.
	KillStored
	// KillRunner ends the runner alone with SIGKILL.
	KillRunner
	// Crash is Kill in the middle of the round, whose requests are then made again.
	Crash

	events = int(Crash) + 1
)

func (e Event) String() string {
	return [...]string{"nothing", "unload", "kill", "kill once stored", "kill runner", "crash"}[e]
}

// Request is one user's request.
type Request struct {
	Kind    Kind
	Chat    int    // which conversation; a Document has none
	Message int    // of a Branch: which of the user's messages is replaced
	Seed    int64  // of the words
	Words   int    // of the new message, one token each
	Image   uint64 // seed of the image that goes with the message; 0 is none
	Answer  int    // tokens wanted
	// Leave says how often the client goes away before it stays: each entry is after how
	// many tokens of the answer, 0 as soon as the request is sent.
	Leave []int
	// Cuts are where the answer is compared with teacher forcing, as shares of its length.
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

// Round is requests that are made at the same time, after an event or, where that is a
// Crash, during it: when the first answer has CrashAfter tokens.
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

// History is everything that happens.
type History struct {
	Seed   uint64
	System int64 // seed of the message that all conversations begin with
	Rounds []Round
}

// Until shows the rounds up to one, the last few of them, for a person to read.
func (h History) Until(round, last int) string {
	var b strings.Builder
	for i := max(0, round-last+1); i <= round && i < len(h.Rounds); i++ {
		fmt.Fprintf(&b, "  round %d: %s\n", i, h.Rounds[i])
	}
	return b.String()
}
