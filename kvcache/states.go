package kvcache

import (
	"context"
	"math"
	"slices"

	ollama "github.com/ollama/ollama/kvcache"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// States is the interface that patches add to an Ollama cache with recurrent layers. State
// sums up all tokens of the cache's one sequence and exists only after the last computed
// token. There are two kinds: of convolutions and of recurrent layers.
type States interface {
	// StateLayers are the layers with a state of a kind that has memory, ascending.
	StateLayers(recurrent bool) []int
	// StateBytes is the size of a layer's state in bytes.
	StateBytes(layer int, recurrent bool) (int, error)
	// ReadState copies a layer's state to dst.
	ReadState(layer int, recurrent bool, dst []byte) error
	// WriteState copies a layer's state from src.
	WriteState(layer int, recurrent bool, src []byte) error
	// HasState reports whether a sequence's next batch has a state to go on from.
	HasState(seq int) bool
	// BeginState makes room for a sequence's state. WriteState follows.
	BeginState(seq int) error
}

// stateEvery is the number of tokens after which a state is stored within a prompt or an
// answer. A large model's state takes 75 MB.
const stateEvery = 2048

// stateID is the group of sections that hold state. No model has as many caches.
const stateID = math.MaxUint16

// kinds of state
var stateKinds = []pagefile.Kind{pagefile.KindConv, pagefile.KindState}

// addStates adds the sections of states, and returns the number of layers that have a state.
func (geo *geometry) addStates(states States, group int) (layers int, err error) {
	seen := make(map[int]bool)
	for _, kind := range stateKinds {
		for _, layer := range states.StateLayers(kind == pagefile.KindState) {
			n, err := states.StateBytes(layer, kind == pagefile.KindState)
			if err != nil {
				return 0, err
			}
			geo.add(group, pagefile.Section{Group: stateID, Layer: uint16(layer), Kind: kind, RowBytes: uint32(n)})
			seen[layer] = true
		}
	}
	return len(seen), nil
}

// endAtState ends a plan at the last position for which a state is stored.
func (f *finder) endAtState(ctx context.Context, p *plan, limit int) {
	for i := len(p.refs) - 1; i >= 0 && ctx.Err() == nil; i-- {
		ref := p.refs[i]
		if end := int(ref.Start) + ref.Stored; end <= p.base {
			break
		}
		candidates := f.store.TailsWithin(ctx, ref.Parent, int(ref.Start), p.prompt.tokens[ref.Start:limit], p.prompt.media)
		if ref.Whole() {
			candidates = append([]diskstore.Ref{ref}, candidates...)
		}
		for _, c := range candidates {
			end := int(c.Start) + c.Tokens
			if end > p.base && end <= limit && p.prompt.boundary(end) == end && f.hasState(ctx, c) {
				p.refs, p.end, p.state = append(p.refs[:i:i], c), end, true
				return
			}
		}
	}
	p.refs, p.end = nil, p.base
}

// hasState reports whether a page was stored with the state after it.
func (f *finder) hasState(ctx context.Context, ref diskstore.Ref) bool {
	stored, err := f.store.LayoutOf(ctx, ref)
	f.store.noteRead(ref, err)
	return err == nil && slices.ContainsFunc(stored.Sections(), func(s pagefile.Section) bool { return !s.Kind.PerToken() })
}

// checkpointed is a TieredCausal over a cache that the runner asks for positions from which
// a sequence can go on.
type checkpointed struct {
	*TieredCausal
	ollama.CheckpointCache
}

// AsCache returns the wrapper for the runner. The result has CheckpointCache's method
// exactly if the wrapped cache has it.
func (t *TieredCausal) AsCache() ollama.Cache {
	if inner, ok := t.Cache.(ollama.CheckpointCache); ok {
		return checkpointed{t, inner}
	}
	return t
}

// Tiered is the wrapper behind the result of AsCache.
func (t *TieredCausal) Tiered() *TieredCausal { return t }
