package proxy

import (
	"bytes"
	"context"
	"hash/maphash"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/kvtier/kvtier/llamatier"
)

// A chat's next request has the messages of the last one, and few more. The slot holds the prompt of
// the last one, and a store hardly holds more, so llama-server gets the request at once. It makes a
// prompt of the messages, which takes as long as all else; we have it made beside the answer, for the
// slot's next save.

// grownMax bounds the bytes that a request has more than the one before it, if it is sent at once.
// Computing as much takes no longer than a look-up and a restore.
const grownMax = 4 << 10

// text is the text of a request, and all else that its prompt can depend on.
type text struct {
	rest uint64 // of the other members
	said []byte // without the end
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
	case a.chat && bytes.HasPrefix(value, []byte("[")):
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

// talk is a request that a slot has served.
type talk struct {
	rest, sum uint64 // of its text
	bytes     int
	served    llamatier.Served
}

func newTalk(t text, served llamatier.Served) talk {
	return talk{t.rest, maphash.Bytes(seed, t.said), len(t.said), served}
}

// goesOn reports whether a request's text is the talk's, and little more.
func (k talk) goesOn(t text) bool {
	if k.rest != t.rest || len(t.said) < k.bytes || len(t.said)-k.bytes > grownMax || maphash.Bytes(seed, t.said[:k.bytes]) != k.sum {
		return false
	}
	more := bytes.TrimLeft(t.said[k.bytes:], " \t\r\n")
	return len(more) == 0 || t.said[0] == '"' || more[0] == ','
}

// resume begins a request that goes on where the last one of a slot has ended; nil if it does not.
func (h *Handler) resume(ctx context.Context, t *llamatier.Tier, p *prompt, cancel context.CancelFunc) *llamatier.Turn {
	if p.Private || p.Slot >= 0 || len(p.text.said) == 0 {
		return nil
	}
	h.mu.Lock()
	at := slices.IndexFunc(h.talks, func(k talk) bool { return k.goesOn(p.text) })
	if at < 0 {
		h.mu.Unlock()
		return nil
	}
	last := h.talks[at].served
	h.mu.Unlock()
	return t.Resume(ctx, last, cancel)
}

// note notes the request that a slot serves, in the place of the slot's last one.
func (h *Handler) note(turn *llamatier.Turn, t text) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.talks = slices.DeleteFunc(h.talks, func(k talk) bool { return k.served.Slot == turn.Slot() })
	if len(t.said) > 0 {
		h.talks = append(h.talks, newTalk(t, turn.Served()))
	}
}

// serveHot has the engine answer a request that Resume has begun. From the first bytes of the answer on,
// when the engine has made a prompt of the request itself, the prompt is found out. The turn ends when
// both are over.
func (h *Handler) serveHot(w http.ResponseWriter, r *http.Request, turn *llamatier.Turn, p *prompt, body []byte, done func()) {
	over := make(chan struct{}) // the answer is
	heard := &end{turn: turn, api: p.api}
	heard.comes = sync.OnceFunc(func() {
		beside, stop := context.WithTimeout(context.WithoutCancel(r.Context()), h.patience)
		go func() {
			defer done()
			defer stop()
			if err := h.find(beside, p, body); err != nil {
				h.log.Debug("kv tier: prompt is not known", "path", r.URL.Path, "error", err)
				p.Tokens, p.Rest = nil, nil
			}
			<-over
			turn.Learn(p.Request)
			h.compare(r.URL.Path, turn, heard.tell())
		}()
	})
	h.note(turn, p.text)
	defer func() {
		close(over)
		heard.comes() // no answer came
	}()
	h.forward(w, r, heard, p.pinned(body, turn.Slot()))
}
