package llamatier

import (
	"context"
	"errors"
)

// Request is a request as far as the Tier must know it.
type Request struct {
	Tokens  []int32            // the prompt, up to the first image or sound
	Rest    []int32            // stands for the first image or sound and all behind it; nil without
	Slot    int                // that the request asks for, -1 for any
	Private bool               // rows are neither restored nor stored
	AtOnce  bool               // the prompt is computed in one step; see Turn.Staged
	Cancel  context.CancelFunc // gives the request up
	Stage   Listener           // hears of the first steps of a prompt that is computed in several
}

// Errors of Begin.
var (
	// ErrClosed reports a request that began after Flush.
	ErrClosed = errors.New("llamatier: the tier is closed")

	// ErrTaken reports that the engine runs a request in the slot that another request would get,
	// that requests of Unknown run, and that the engine has a free slot.
	ErrTaken = errors.New("llamatier: the engine has given the slot to another request")
)
