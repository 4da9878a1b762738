package proxy

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/kvtier/kvtier/llamatier"
	"github.com/kvtier/kvtier/telemetry"
)

// early are the requests that may compute in a slot and began before there was a Tier.
type early struct {
	any      bool                 // there was one, which may have computed something
	adapters bool                 // one changed the adapters
	running  map[*func(bool)]bool // a pointer for each that runs, to the end of its Tier.Unknown
}

// Tier returns the Tier, nil before Use.
func (h *Handler) Tier() *llamatier.Tier {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tier
}

// Recall has the tokens of texts known that were prompts before, and those of a stored conversation, which
// is read meanwhile. control reports whether a token is a control token. Recall is called before Use.
func (h *Handler) Recall(control func(token int32) bool, stored func(context.Context) ([]int32, error)) {
	ctx, stop := context.WithTimeout(context.Background(), recallTime)
	h.texts.control, h.texts.coming = control, ctx.Done() // also if a disk hangs
	go func() {
		defer stop()
		tokens, err := stored(ctx)
		if err == nil {
			err = h.texts.learn(ctx, tokens)
		}
		if err != nil {
			h.log.Debug("kv tier: text of the stored conversation is not known", "error", err)
			return
		}
		h.log.Debug("kv tier: text of the stored conversation is known", "tokens", len(tokens))
	}()
}

// Mistaken has all texts forgotten: the tokens of one were not those that llama-server has made of it. Stored
// tokens may be others, in which a model has spelled its answer.
func (h *Handler) Mistaken() { h.texts.forget(0) }

// recallTime bounds the reading of a stored conversation.
const recallTime = time.Second

// Use begins to give prompts slots of a Tier. The Tier learns that requests before may have
// left anything in the slots.
func (h *Handler) Use(t *llamatier.Tier) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.early.any {
		t.Unknown()(true)
	}
	for end := range h.early.running {
		*end = t.Unknown()
	}
	if h.early.adapters {
		t.Off(telemetry.ObstacleOption, adaptersChanged)
	}
	h.tier = t
}

const adaptersChanged = "adapters were changed while the model was loaded"

// pass has the engine answer a request of which nothing was read.
func (h *Handler) pass(w http.ResponseWriter, r *http.Request) {
	if !isObject(r) {
		h.passUnread(w, r, "it is no object of JSON")
		return
	}
	body, of, done := h.body(w, r)
	if body == nil {
		return
	}
	defer done()
	h.passOf(w, r, of, nil)
}

// body reads the body of a request, which llama-server gets, too, and whose it is. Without one it answers the request.
// Otherwise the caller calls done when the body is not needed any more.
func (h *Handler) body(w http.ResponseWriter, r *http.Request) (body []byte, of llamatier.Tenant, done func()) {
	body, done, err := h.bodies.read(r)
	if body == nil {
		done()
		if err != nil {
			http.Error(w, "read the request: "+err.Error(), http.StatusBadRequest)
			return nil, of, nil
		}
		h.passUnread(w, r, "it is large, or many are")
		return nil, of, nil
	}
	of, err = h.tenant(r, body)
	if err == nil && slices.Contains(needed(r.URL.Path), formatMember) {
		body, err = plain(r, body)
	}
	if err != nil || of != (llamatier.Tenant{}) && h.ours.Shares != "" {
		done()
		h.refuse(w, err)
		return nil, of, nil
	}
	return body, of, done
}

// passUnread has the engine answer a request that is not read before, for some reason.
func (h *Handler) passUnread(w http.ResponseWriter, r *http.Request, why string) {
	h.log.Debug("kv tier: request passes through", "path", r.URL.Path, "reason", why)
	of, _ := h.tenant(r, nil)
	u := &unread{ReadCloser: r.Body, names: needed(r.URL.Path)}
	r = r.WithContext(context.WithValue(r.Context(), unreadKey{}, u))
	r.Body = u
	h.passOf(w, r, of, nil)
}

// passOf has the engine answer a tenant's request, which may compute in a slot that the engine chooses, and
// may change the adapters. hears gets the engine's answer, unless it is nil.
func (h *Handler) passOf(w http.ResponseWriter, r *http.Request, of llamatier.Tenant, hears func(*http.Response) error) {
	if of != (llamatier.Tenant{}) && (h.Tier() == nil || h.ours.Shares != "") {
		h.refuse(w, nil)
		return
	}
	end, err := h.unknown(r.Context(), r.URL.Path == "/lora-adapters", of)
	if errors.Is(err, llamatier.ErrSeparate) {
		apart(w, err)
		return
	}
	if err != nil {
		panic(http.ErrAbortHandler) // the server ends, or the client is gone
	}
	status, whole := 0, false // until the engine has answered
	defer func() {
		refused := refuses(prompts[r.URL.Path], status)
		end(!refused, refused || whole && status/100 == 2 && r.Context().Err() == nil)
	}()
	heard := func(res *http.Response) error {
		status = res.StatusCode
		if hears == nil {
			return nil
		}
		return hears(res)
	}
	h.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), heardKey{}, heard)))
	whole = true // it panics where the answer or the client ends before
}

// heardKey is the key, in a request's context, of a function that hears the engine's answer.
type heardKey struct{}

// refusals are the statuses with which llama-server answers before it computes anything: it has no
// such address, does not do that with this model, or does not know the client.
var refusals = map[int]bool{http.StatusNotFound: true, http.StatusNotImplemented: true, http.StatusUnauthorized: true}

// refuses reports whether llama-server has answered a request before it computed anything. It looks at
// the whole of a chat or a text with a gap before; of several prompts it may have computed some.
func refuses(a api, status int) bool {
	return refusals[status] || status == http.StatusBadRequest && (a.chat || a.infill)
}

// unknown notes that a tenant's request may compute in a slot that the engine chooses, until the caller
// calls end. The request may also change the adapters.
func (h *Handler) unknown(ctx context.Context, adapters bool, of llamatier.Tenant) (end func(computed, heard bool), err error) {
	h.mu.Lock()
	if t := h.tier; t != nil {
		h.mu.Unlock()
		if adapters {
			t.Off(telemetry.ObstacleOption, adaptersChanged)
		}
		h.learned()
		return t.Pass(ctx, of)
	}
	defer h.mu.Unlock()
	h.early.adapters = h.early.adapters || adapters
	later := func(bool) {}
	if h.early.running == nil {
		h.early.running = make(map[*func(bool)]bool)
	}
	h.early.running[&later] = true
	return func(computed, _ bool) {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.early.running, &later)
		h.early.any = h.early.any || computed
		later(computed)
	}, nil
}
