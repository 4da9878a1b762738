package llamatier

import (
	"context"
	"errors"

	"github.com/kvtier/kvtier/llamastate"
)

// Request is a request as far as the Tier must know it.
type Request struct {
	Tokens  []int32            // the prompt, up to the first image or sound
	Parts   []Part             // the first image or sound, and all behind it
	Rest    []int32            // stands for those of the parts of which the Tier knows nothing; nil without
	Slot    int                // that the request asks for, -1 for any
	Private bool               // rows are neither restored nor stored
	AtOnce  bool               // the prompt is computed in one step; see Turn.Staged
	Cancel  context.CancelFunc // gives the request up
	Stage   Listener           // hears of the first steps of a prompt that is computed in several

	known int                 // of Parts, whose tokens are among Tokens
	media []llamastate.Medium // of these
}

// parts are the parts of which nothing is known.
func (r *Request) parts() []Part { return r.Parts[r.known:] }

// textual reports whether a prompt has neither image nor sound.
func (r *Request) textual() bool { return r.Rest == nil && r.media == nil }

// Errors of Begin.
var (
	// ErrClosed reports a request that began after Flush.
	ErrClosed = errors.New("llamatier: the tier is closed")

	// ErrTaken reports that the engine runs a request in the slot that another request would get,
	// that requests of Unknown run, and that the engine has a free slot.
	ErrTaken = errors.New("llamatier: the engine has given the slot to another request")
)
