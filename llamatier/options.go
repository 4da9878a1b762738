package llamatier

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/slotfile"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
	"github.com/kvtier/kvtier/telemetry/why"
)

// Store is the page store, a *diskstore.Store.
type Store interface {
	Find(ctx context.Context, p diskstore.Prompt) diskstore.Found
	Has(key pagefile.Key) bool
	Put(ctx context.Context, p *pagefile.Page) error
	Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error
}

// Options configures a Tier.
type Options struct {
	Engine  *Engine
	Shape   *llamastate.Shape // of the engine's files
	Slots   int               // number of the engine's slots
	Context int               // tokens that a slot has room for
	Window  int               // positions that the engine's window keeps; 0 without a window
	NoShift bool              // the engine never shifts the context of a full slot
	Drafts  bool              // the engine has a draft model or draft layers, whose rows are in no file

	// Search has the slots of requests looked for that the engine chooses (Request.Loose). Where contexts are
	// shifted or pages lossy, a slot that is taken for another one would do harm: its rows need not be those
	// of its tokens.
	Search bool
	// Similarity is the part of a prompt that the engine must find in a slot to choose the slot for it. At 0 the
	// engine chooses the one unused for longest.
	Similarity float64

	// Control reports whether a token is a control token, as those that begin the parts of a
	// chat are; nil if that is not known.
	Control func(token int32) bool
	// UserStart are the tokens with which messages of users begin in chats; nil if they are not known.
	UserStart []int32

	Store       Store
	Fingerprint pagefile.Key // of the store
	PageTokens  int          // of a page; 0 means diskstore.DefaultPageTokens

	// Lossy also restores lossy pages, where they reach a page further than exact ones. A slot
	// with such rows is not stored. Without Lossy no lossy page is looked up, and in a model with
	// windows or recurrent layers none ever is.
	Lossy bool

	// MediaKey names all that decides rows of images and sounds beside the model and their content; ""
	// stores none. MediaFile keeps what the engine makes of them; "" forgets it.
	MediaKey, MediaFile string

	// Files makes the files through which the engine saves and restores slots.
	Files *slotfile.Files

	// PartBytes is the usual size of the parts in which a stream is read from pages; 0 means 16 MiB.
	PartBytes int64

	// Idle is the time after a request at which a slot is saved.
	Idle time.Duration

	// Rates decides between restoring and computing; nil means rates that are forgotten.
	Rates *rates.Rates

	// Meter counts prompts and pages; nil counts nothing.
	Meter *telemetry.Meter
	// Recents keeps the latest prompts in memory, to say why a prompt was computed; nil says nothing.
	Recents *why.Recents

	// Unstored is told of slots that should have been stored and do not reach the store, which
	// tells of its own failures. Nil means that only Log is.
	Unstored *unstored.Watch

	// Mistaken is called when a slot turns out to hold another prompt than the one that its request was said
	// to have; nil does nothing.
	Mistaken func()

	// AlwaysRestore restores stored pages although computing may be quicker, and computes prompts in steps
	// although that may not pay, for tests.
	AlwaysRestore bool

	// After is time.After; nil means that.
	After func(time.Duration) <-chan time.Time

	// AfterFunc is time.AfterFunc; nil means that.
	AfterFunc func(d time.Duration, f func()) interface{ Stop() bool }

	Log *slog.Logger
}

// partBytes is Options.PartBytes, unless that is set.
const partBytes = 16 << 20

// fill replaces zero values by those that they stand for.
func (opt *Options) fill() {
	if opt.AfterFunc == nil {
		opt.AfterFunc = func(d time.Duration, f func()) interface{ Stop() bool } { return time.AfterFunc(d, f) }
	}
	if opt.After == nil {
		opt.After = time.After
	}
	opt.Rates = cmp.Or(opt.Rates, rates.New())
	if opt.Unstored == nil {
		opt.Unstored = unstored.New(opt.Log, opt.Meter)
	}
	if opt.Mistaken == nil {
		opt.Mistaken = func() {}
	}
	opt.PageTokens = cmp.Or(opt.PageTokens, diskstore.DefaultPageTokens)
	opt.PartBytes = cmp.Or(opt.PartBytes, partBytes)
}

// patience is how long a Tier waits for the engine. engine.Patience has the waits for the store.
type patience struct {
	look time.Duration // between two looks at a slot while an action on it is not answered
	end  time.Duration // for an action on a slot in which nothing runs
	part time.Duration // for reading a part of a stream, while an engine waits for it

	leave time.Duration // for an engine to leave a request whose client is gone

	search time.Duration // for other requests, until the engine has chosen a slot for one

	stage time.Duration // for the first step of a request; the engine goes on from there

	saving  time.Duration // before a save, for the pages of another slot to be stored, which a disk may hang
	unknown time.Duration // for actions on slots before a request of which nothing is known

	busy time.Duration // until people are told that requests of others keep a slot from being saved

	apart time.Duration // for slots with rows of other tenants, which may run requests

	answer time.Duration // for an answer to a question, which comes between two batches
}

var usualPatience = patience{
	look: time.Second, end: 10 * time.Minute, part: 10 * time.Second,
	leave: 5 * time.Second, search: 2 * time.Second, stage: stageMax, saving: time.Second, unknown: 10 * time.Second,
	busy: 10 * time.Minute, apart: 10 * time.Minute, answer: 5 * time.Minute,
}

// lookTimeout bounds the time of a look at a slot.
const lookTimeout = 10 * time.Second

// stageMax bounds the first step of a request: until it is over, a client gets no headers.
const stageMax = 5 * time.Minute
