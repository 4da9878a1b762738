package proxy

import (
	"bytes"
	"context"
	"hash/maphash"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/llamatier"
)

// A conversation's next request has the prompt of the last one, and little more. The slot holds that prompt,
// and a store hardly holds more, so llama-server gets the request at once. It makes tokens of the prompt, which
// takes as long as all else; we have them made beside the answer, for the slot's next save.

// grownMax bounds the bytes that a request has more than the one before it, if it is sent at once.
// Computing as much takes no longer than a look-up and a restore.
const grownMax = 4 << 10

// text is the text of a request, and all else that its prompt can depend on.
type text struct {
	rest uint64 // of the other members
	said []byte // without the end
	of   llamatier.Tenant
}

// seed is that of all sums of texts.
var seed = maphash.MakeSeed()

// textOf returns the text of a request; without bytes if it has none that another text can begin with.
func textOf(path string, in members) (t text) {
	a, name := prompts[path], "prompt"
	if a.chat {
		if name = "messages"; in[name] == nil {
			name = "input"
		}
	}
	value := bytes.TrimSpace(in[name])
	switch {
	case bytes.HasPrefix(value, []byte(`"`)):
		t.said = value[:len(value)-1]
	case bytes.HasPrefix(value, []byte("[")) && (a.chat || !bytes.ContainsAny(value[1:], `"[{n`)): // tokens
		t.said = bytes.TrimSpace(value[:len(value)-1])
	}
	var sum maphash.Hash
	sum.SetSeed(seed)
	_, _ = sum.WriteString(path)
	for _, other := range slices.Sorted(maps.Keys(in)) {
		if other != name {
			_, _ = sum.WriteString("\x00" + other + "\x00")
			_, _ = sum.Write(in[other])
		}
	}
	t.rest = sum.Sum64()
	return t
}

// talk is a request that a slot has served, or serves.
type talk struct {
	rest, sum uint64 // of its text
	of        llamatier.Tenant
	bytes     int
	served    llamatier.Served
	over      chan struct{} // closed when its answer is over
	ended     chan struct{} // closed when its turn is
}

func newTalk(t text, served llamatier.Served) *talk {
	return &talk{t.rest, maphash.Bytes(seed, t.said), t.of, len(t.said), served, make(chan struct{}), make(chan struct{})}
}

// goesOn reports whether a request's text is the talk's, and little more.
func (k *talk) goesOn(t text) bool {
	if k.of != t.of || k.rest != t.rest || len(t.said) < k.bytes || len(t.said)-k.bytes > grownMax || maphash.Bytes(seed, t.said[:k.bytes]) != k.sum {
		return false
	}
	more := bytes.TrimLeft(t.said[k.bytes:], " \t\r\n")
	return len(more) == 0 || t.said[0] == '"' || more[0] == ','
}

// resume begins a request that goes on where the last one of a slot has ended; nil if it does not. If the
// tokens of the last one are being found out, it waits for the slot.
func (h *Handler) resume(ctx context.Context, t *llamatier.Tier, p *prompt, cancel context.CancelFunc) *llamatier.Turn {
	if p.Private || p.Slot >= 0 || len(p.text.said) == 0 {
		return nil
	}
	last := h.lastOf(p.text)
	if last == nil {
		return nil
	}
	select {
	case <-last.over:
	default:
		return nil
	}
	p.Cancel = cancel
	select {
	case <-last.ended:
		return t.Resume(ctx, last.served, p.Request)
	case <-ctx.Done():
		return nil
	}
}

// lastOf returns the talk that has most of a text; nil if none has.
func (h *Handler) lastOf(t text) (last *talk) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range h.talks {
		if k.goesOn(t) && (last == nil || k.bytes >= last.bytes) {
			last = k
		}
	}
	return last
}

// note notes the request that a slot serves, in the place of the slot's last one. The caller calls end
// of what it returns when the turn has ended.
func (h *Handler) note(turn *llamatier.Turn, t text) *talk {
	k := newTalk(t, turn.Served())
	h.mu.Lock()
	defer h.mu.Unlock()
	h.talks = slices.DeleteFunc(h.talks, func(other *talk) bool { return other.served.Slot == turn.Slot() })
	if len(t.said) > 0 {
		h.talks = append(h.talks, k)
	}
	return k
}

// learned waits until the prompts of answers that are over are found out, so that their slots can be saved.
func (h *Handler) learned() {
	h.mu.Lock()
	talks := slices.Clone(h.talks)
	h.mu.Unlock()
	late := time.After(findGrace)
	for _, k := range talks {
		if !steady.Ended(k.over, 0) {
			continue
		}
		select {
		case <-k.ended:
		case <-late:
			return
		}
	}
}

// forget forgets a request of which the engine has computed nothing.
func (h *Handler) forget(k *talk) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.talks = slices.DeleteFunc(h.talks, func(other *talk) bool { return other == k })
}

// findGrace is the time for tokens of a request that is given up, or for which another request waits.
const findGrace = time.Second

// serveHot has the engine answer a request that Resume has begun. From the first bytes of the answer on,
// when the engine has made a prompt of the request itself, the prompt is found out. The turn ends when
// both are over. gone ends when the tier gives the request up.
func (h *Handler) serveHot(w http.ResponseWriter, r *http.Request, gone context.Context, turn *llamatier.Turn, p *prompt, body []byte, done func()) {
	heard := &end{turn: turn, api: p.api, account: p.account}
	k := h.note(turn, p.text)
	heard.comes = sync.OnceFunc(func() {
		beside, stop := context.WithTimeout(context.WithoutCancel(r.Context()), h.patience)
		stopLate := context.AfterFunc(gone, func() { time.AfterFunc(findGrace, stop) })
		go func() {
			defer done()
			defer stop()
			defer stopLate()
			if err := h.find(beside, p, body); err != nil {
				h.log.Debug("kv tier: prompt is not known", "path", r.URL.Path, "error", err)
				p.Tokens, p.Parts = nil, nil
			}
			<-k.over
			turn.Learn(p.Request)
			h.end(r.URL.Path, heard, k)
		}()
	})
	heard.ends = sync.OnceFunc(func() {
		close(k.over)
		heard.comes() // no answer came
	})
	defer heard.ends()
	h.forward(w, r, heard, p.pinned(body, turn.Slot()))
}

// end ends the turn of a request whose answer is over.
func (h *Handler) end(path string, heard *end, k *talk) {
	defer close(k.ended)
	if !heard.computed() {
		h.forget(k)
		heard.turn.Drop()
		return
	}
	answer := heard.answer()
	heard.turn.End(answer)
	if answer != nil && heard.turn.Tokens() > 0 {
		h.compare(path, heard.turn, answer)
	}
}
