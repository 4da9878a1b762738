// Package proxy answers in place of a llama-server, and gives each prompt a slot that holds as
// much of it as a page store has.
//
// The bodies of requests and answers pass through byte for byte, with these exceptions:
//
//   - The number of the slot is added to a prompt that names none, but for Messages.
//   - Where a request names the members of an answer that is no stream, its account is added to them, and
//     taken out of the answer, unless that has over 4 MiB.
//   - A prompt that names a form of chats names text without a form.
//   - In the answer to a prompt that was computed in steps, the figures of all are added up. A
//     stream begins with the first step: comments, progress and ids of events are ours, and a later error
//     is an event.
//   - Until prompts may be answered (State.Ready), POST requests and those for the health get
//     the answer of a llama-server that is loading its model: status 503. So does any request
//     before llama-server listens.
//   - A tenant's request, by its API key or cache_salt, gets status 501 where tenants are not kept apart, and 503
//     where it has waited for those of others for too long. With tenants /slots and X-Conversation-Id are off.
//   - Options that llama-server has for our sake alone are hidden: /slots and /metrics get status
//     501, and /props says that they are off.
//
// A request that the package does not understand passes through as it is.
package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/kvtier/kvtier/llamatier"
)

// Handler answers in place of an engine.
type Handler struct {
	Infill Infill // set before Use

	engine *llamatier.Engine
	state  State
	ours   Ours
	proxy  *httputil.ReverseProxy
	log    *slog.Logger

	bodies   bodies
	texts    texts
	apart    atomic.Bool   // there are tenants
	patience time.Duration // for finding out a prompt

	mu    sync.Mutex
	tier  *llamatier.Tier
	early early                 // requests before the tier
	wrong map[string]misreading // by path
	talks []*talk               // one for each slot
}

// State says how far the engine is.
type State struct {
	Listening func() bool // the engine has answered something; without an answer it has ended
	Ready     func() bool // prompts may be answered; until then the engine counts as loading
}

// New returns a Handler, whose requests pass through until Use. Clients see a llama-server
// without the options that are ours.
func New(e *llamatier.Engine, ours Ours, state State, log *slog.Logger) *Handler {
	target, _ := url.Parse(llamatier.Address("")) // a constant
	h := &Handler{engine: e, ours: ours, state: state, log: log, bodies: bodies{semaphore.NewWeighted(bodiesMax), bodyMax}, texts: texts{engine: e, log: log, pieces: make(map[int32]string)}, patience: understandTime, wrong: make(map[string]misreading)}
	h.apart.Store(ours.Tenants != nil)
	h.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
			r.Out.URL.RawQuery = r.In.URL.RawQuery // ReverseProxy drops members that it cannot read

			for _, asSent := range []string{"Accept-Encoding", "Authorization", "X-Api-Key"} { // whatever Connection names
				r.Out.Header[asSent] = r.In.Header[asSent]
			}
		},
		Transport: e.Client.Transport,
		ModifyResponse: func(res *http.Response) error {
			if heard, ok := res.Request.Context().Value(heardKey{}).(func(*http.Response) error); ok {
				if err := heard(res); err != nil {
					return err
				}
			}
			return ours.hide(res, h.apart.Load())
		},
		FlushInterval: -1, // at once
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, _ error) {
			if u, large := r.Context().Value(unreadKey{}).(*unread); large && u.found.Load() != nil {
				apart(w, *u.found.Load())
				return
			}
			if state.Listening() {
				panic(http.ErrAbortHandler) // the client's connection ends as llama-server's did
			}
			unavailable(w)
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return h
}

// unavailable answers for an engine that is not ready, as llama-server does while it loads a model.
func unavailable(w http.ResponseWriter) {
	fails(w, http.StatusServiceUnavailable, `"message":"Loading model","type":"unavailable_error","code":503`)
}

// fails answers with an error of llama-server.
func fails(w http.ResponseWriter, status int, members string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	text := `{"error":{` + members + `}}`
	if o, begun := w.(*opening); begun {
		text = o.failure("{" + members + "}")
	}
	_, _ = io.WriteString(w, text)
}

// api is a kind of requests with a prompt.
type api struct {
	chat    bool
	named   string                         // the type of its events, if these have names
	convert func(members) (members, error) // into the body of a chat; nil: it is one, or a prompt
	loose   bool                           // llama-server drops the number of a slot
	infill  bool                           // a text with a gap, of which we make the prompt ourselves
}

// prompts are the requests whose prompt can be found out, by path.
var prompts = map[string]api{
	"/completion":          {},
	"/completions":         {},
	"/v1/completions":      {named: "text_completion"},
	"/infill":              {infill: true},
	"/chat/completions":    {chat: true, named: "chat.completion.chunk"},
	"/v1/chat/completions": {chat: true, named: "chat.completion.chunk"},
	"/responses":           {chat: true, convert: fromResponses},
	"/v1/responses":        {chat: true, convert: fromResponses},
	"/v1/messages":         {chat: true, convert: fromMessages, loose: true},
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if n := r.ContentLength; n > 0 {
		// The server closes a body when the answer begins; a look behind its last byte would cut that.
		r.Body = joined{io.LimitReader(r.Body, n), r.Body}
	}
	if !h.state.Ready() && (r.URL.Path == "/health" || r.URL.Path == "/v1/health" || r.Method == http.MethodPost) {
		unavailable(w) // the engine answers nobody before the Tier
		return
	}
	if why := h.ours.refuse(r, h.apart.Load()); why != "" && h.key(r) != wrong {
		fails(w, http.StatusNotImplemented, `"code":501,"message":"`+why+`","type":"not_supported_error"`)
		return
	}
	if r.Method != http.MethodPost || harmless[r.URL.Path] {
		h.proxy.ServeHTTP(w, r)
		return
	}
	a, known := prompts[r.URL.Path]
	t := h.Tier()
	switch key := h.key(r); {
	case key == wrong:
		h.proxy.ServeHTTP(w, r)
	case t != nil && known && key == right && !h.misread(r.URL.Path):
		h.servePrompt(w, r, t, a)
	default:
		h.pass(w, r)
	}
}

// understandTime bounds the time in which the engine makes tokens of a prompt.
const understandTime = time.Minute

// answer is the engine's answer to whether the key of a request is right.
type answer int

const (
	unanswered answer = iota
	wrong
	right
)

// key asks the engine for its opinion of a request's key, because no slot may be touched for a
// client without the right one.
func (h *Handler) key(r *http.Request) answer {
	if !h.ours.Keys {
		return right
	}
	ctx, stop := context.WithTimeout(r.Context(), h.patience)
	defer stop()
	switch allowed, err := h.engine.Allows(ctx, r.Header); {
	case err != nil:
		return unanswered
	case allowed:
		return right
	}
	return wrong
}

// harmless are the paths of requests that compute nothing in a slot.
var harmless = map[string]bool{
	"/tokenize": true, "/detokenize": true, "/apply-template": true,
	"/v1/messages/count_tokens": true, "/v1/responses/input_tokens": true, "/responses/input_tokens": true,
	"/v1/chat/completions/input_tokens": true, "/chat/completions/input_tokens": true,
	"/v1/chat/completions/control": true, "/v1/streams/lookup": true, "/props": true, "/tools": true, "/cors-proxy": true,
}

// servePrompt serves a request in a slot of its own.
func (h *Handler) servePrompt(w http.ResponseWriter, r *http.Request, t *llamatier.Tier, a api) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	r = r.WithContext(ctx)
	body, of, done := h.body(w, r)
	if body == nil {
		return
	}
	p, err := readPrompt(r, body, a)
	if err == nil {
		p.Tenant, p.text.of = of, of
		gone, giveUp := context.WithCancel(context.Background())
		if turn := h.resume(ctx, t, p, func() { cancel(); giveUp() }); turn != nil {
			h.serveHot(w, r, gone, turn, p, body, done)
			return
		}
		giveUp()
	}
	defer done()
	if err == nil {
		limited, stop := context.WithTimeout(ctx, h.patience)
		err = h.find(limited, p, body)
		stop()
	}
	if ctx.Err() != nil {
		panic(http.ErrAbortHandler) // the client is gone, and the engine has not heard of its request
	}
	if err == nil && p.answers > 1 && (p.answers > len(t.Slots()) || len(p.Parts) > 0 || !t.Finds(len(p.Tokens))) {
		err = errNotUnderstood
	}
	if err != nil {
		h.log.Debug("kv tier: request passes through", "path", r.URL.Path, "reason", err)
		h.passOf(w, r, of, nil)
		return
	}
	h.serveCold(w, r, t, p, body, cancel)
}

// serveCold serves a request whose prompt's tokens are known.
func (h *Handler) serveCold(w http.ResponseWriter, r *http.Request, t *llamatier.Tier, p *prompt, body []byte, cancel context.CancelFunc) {
	p.Cancel = cancel
	opening := newOpening(w, p, h.ours.Pings)
	defer opening.end()
	if opening != nil {
		p.Stage = llamatier.Listener{Origin: r.Header.Get("Origin"), Hear: opening.hear}
	}
	turn, err := t.Begin(r.Context(), p.Request)
	if errors.Is(err, llamatier.ErrSeparate) {
		apart(w, err)
		return
	}
	if errors.Is(err, llamatier.ErrTaken) {
		h.passOf(w, r, p.Tenant, nil)
		return
	}
	if err != nil {
		panic(http.ErrAbortHandler) // the server ends, or the client is gone
	}
	if p.answers > 1 {
		h.serveSeveral(w, r, p, opening, turn, t)
		return
	}
	heard := &end{turn: turn, staged: turn.Staged, api: p.api, account: p.account}
	if opening.end() {
		w, heard.opening = opening, opening
	}
	k := h.note(turn, p.text)
	over := sync.OnceFunc(func() {
		close(k.over)
		h.end(r.URL.Path, heard, k)
	})
	defer over()
	if !p.Loose { // else the engine is asked for the slot
		heard.ends = over // the client's next request finds the slot free
	}
	h.forward(w, r, heard, p.pinned(body, turn.Slot()))
}

// forward has the engine answer a request that has a slot.
func (h *Handler) forward(w http.ResponseWriter, r *http.Request, heard *end, body []byte) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler)
	}
	heard.sent, heard.began = true, time.Now()
	r = r.WithContext(context.WithValue(r.Context(), heardKey{}, heard.passes))
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	h.proxy.ServeHTTP(w, r)
}

// misreading counts the prompts of a path, one after the other, that llama-server has made in another way
// than we have.
type misreading struct {
	prompts int
	last    time.Time
}

const (
	// misreadingsMax is the number of them after which the path's requests pass through: their slots would
	// not be stored, and would be emptied before the next one.
	misreadingsMax = 3
	// misreadingTime is the time after which one is tried again.
	misreadingTime = 10 * time.Minute
)

// compare notes whether llama-server has made a prompt of another length.
func (h *Handler) compare(path string, turn *llamatier.Turn, answer *llamatier.Answer) {
	reads := turn.Reads(answer)
	if a := prompts[path]; a.convert == nil && !a.infill {
		if !reads {
			h.texts.forget(1)
		}
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if reads {
		delete(h.wrong, path)
		return
	}
	h.texts.forget(0) // another text is the reason, as a rule
	m := misreading{prompts: h.wrong[path].prompts + 1, last: time.Now()}
	h.wrong[path] = m
	if m.prompts == misreadingsMax {
		h.log.Warn("kv tier: llama-server makes other prompts of this path", "path", path, "tokens", answer.Cached+answer.Processed, "expected", turn.Tokens())
	}
}

// misread reports whether the requests to a path pass through.
func (h *Handler) misread(path string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.wrong[path]
	return m.prompts >= misreadingsMax && time.Since(m.last) < misreadingTime
}

var (
	errNotUnderstood = errors.New("its prompt is of another form")
	errManyValues    = errors.New("it has many values")
)
