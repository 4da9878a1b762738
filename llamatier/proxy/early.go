package proxy

import "github.com/kvtier/kvtier/llamatier"

// early are the requests that may compute in a slot and began before there was a Tier.
type early struct {
	any      bool             // there was one
	adapters bool             // one changed the adapters
	running  map[*func()]bool // a pointer for each that runs, to the end of its Tier.Unknown
}

// Tier returns the Tier, nil before Use.
func (h *Handler) Tier() *llamatier.Tier {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tier
}

// Use begins to give prompts slots of a Tier. The Tier learns that requests before may have
// left anything in the slots.
func (h *Handler) Use(t *llamatier.Tier) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.early.any {
		t.Unknown()()
	}
	for end := range h.early.running {
		*end = t.Unknown()
	}
	if h.early.adapters {
		t.Off(adaptersChanged)
	}
	h.tier = t
}

const adaptersChanged = "adapters were changed while the model was loaded"

// unknown notes that a request may compute in a slot that the engine chooses, until the caller
// calls end. The request may also change the adapters.
func (h *Handler) unknown(adapters bool) (end func()) {
	t, end := h.tierOrEarly(adapters)
	if t == nil {
		return end
	}
	if adapters {
		t.Off(adaptersChanged)
	}
	return t.Unknown()
}

// tierOrEarly returns the Tier. Before Use, it notes an early request until the caller calls end.
func (h *Handler) tierOrEarly(adapters bool) (t *llamatier.Tier, end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tier != nil {
		return h.tier, nil
	}
	h.early.any, h.early.adapters = true, h.early.adapters || adapters
	later := func() {}
	if h.early.running == nil {
		h.early.running = make(map[*func()]bool)
	}
	h.early.running[&later] = true
	return nil, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.early.running, &later)
		later()
	}
}
