package proxy

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvtier/kvtier/llamatier"
)

// opening is the beginning of a streamed answer, as the client gets it while the first steps of
// its prompt are computed: the header, comments that keep the connection alive and, if the client has asked
// for it, the progress. Then it is the ResponseWriter of the rest.
type opening struct {
	http.ResponseWriter
	p     *prompt
	pings time.Duration // between two comments; at most 0 for none

	mu    sync.Mutex
	open  bool // the client has the header
	over  bool // the rest comes
	timer *time.Timer
	id    string // of the answer's events
}

// streaming is the part of a request that says how its answer is streamed.
type streaming struct {
	stream   bool
	progress bool
	pings    *int32          // seconds between two comments; nil for what the engine was told
	model    json.RawMessage // nil without
}

func readStreaming(in members) streaming {
	s := streaming{stream: set(in["stream"], "false"), progress: set(in["return_progress"], "false"), model: in["model"]}
	if json.Unmarshal(in["sse_ping_interval"], &s.pings) != nil {
		s.pings = nil
	}
	return s
}

// newOpening returns the opening of a request's answer; nil if that is no stream. pings is the time between
// two comments if the request names none.
func newOpening(w http.ResponseWriter, p *prompt, pings time.Duration) *opening {
	if !p.streaming.stream {
		return nil
	}
	if seconds := p.streaming.pings; seconds != nil {
		pings = time.Duration(*seconds) * time.Second
	}
	return &opening{ResponseWriter: w, p: p, pings: pings, id: "chatcmpl-" + rand.Text()}
}

// hear tells the client how far the engine is.
func (o *opening) hear(p llamatier.Progress) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return
	}
	event := o.progress(p)
	if o.open && event == "" {
		return
	}
	if !o.open {
		maps.Copy(o.Header(), p.Header)
		for _, ofConnection := range []string{"Connection", "Keep-Alive", "Content-Length"} {
			o.Header().Del(ofConnection)
		}
		o.ResponseWriter.WriteHeader(http.StatusOK)
		o.open = true
	}
	o.sendLocked(event)
}

// ping sends a comment.
func (o *opening) ping() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.over {
		o.sendLocked(":\n\n")
	}
}

// sendLocked sends some bytes of the answer, and a comment some time later. An error is that of the
// client's connection, which ends its request.
func (o *opening) sendLocked(event string) {
	_, _ = io.WriteString(o.ResponseWriter, event)
	_ = http.NewResponseController(o.ResponseWriter).Flush()
	if o.timer != nil {
		o.timer.Stop()
	}
	if o.pings > 0 {
		o.timer = time.AfterFunc(o.pings, o.ping)
	}
}

// progress returns the event in which the engine reports the progress of the whole prompt; "" if the
// client does not ask for it, or its API has none.
func (o *opening) progress(p llamatier.Progress) string {
	if !o.p.streaming.progress || o.p.api.convert != nil {
		return ""
	}
	event := map[string]any{"prompt_progress": map[string]any{"total": len(o.p.Tokens), "cache": p.Cached, "processed": p.Processed, "time_ms": p.Took.Milliseconds()}}
	if o.p.api.named != "" {
		maps.Copy(event, map[string]any{"created": time.Now().Unix(), "id": o.id, "object": o.p.api.named})
		if o.p.streaming.model != nil {
			event["model"] = o.p.streaming.model
		}
	}
	choice := map[string]any{"index": 0, "finish_reason": nil}
	switch {
	case o.p.api.chat:
		choice["delta"] = map[string]any{"role": "assistant", "content": nil}
		event["choices"] = []any{choice}
	case o.p.api.named != "":
		choice["text"], choice["logprobs"] = "", nil
		event["choices"] = []any{choice}
	default:
		maps.Copy(event, map[string]any{"index": 0, "content": "", "tokens": []int32{}, "stop": false})
	}
	text, err := json.Marshal(event)
	if err != nil {
		return ""
	}
	return "data: " + string(text) + "\n\n"
}

// end ends the opening, and reports whether the client has the header. A nil opening has none.
func (o *opening) end() bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	if o.timer != nil {
		o.timer.Stop()
	}
	return o.open
}

// named returns the id of the events that the client may have; "" if there are none.
func (o *opening) named() string {
	if o == nil || !o.p.streaming.progress {
		return ""
	}
	return o.id
}

// WriteHeader implements http.ResponseWriter: the client has a header, and the rest comes. From here on
// ReverseProxy writes to the client, also from a goroutine of its own.
func (o *opening) WriteHeader(int) { o.end() }

// Write implements http.ResponseWriter: the rest comes.
func (o *opening) Write(b []byte) (int, error) {
	o.end()
	return o.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (o *opening) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// errorMax bounds an error of the engine, in bytes.
const errorMax = 64 << 10

// continued makes an answer the rest of a stream that has begun: the engine's error is its last event.
func (o *opening) continued(res *http.Response) error {
	if res.StatusCode == http.StatusOK {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, errorMax))
	if err != nil {
		return err
	}
	res.Body.Close()
	var in struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(text, &in) != nil || in.Error == nil {
		in.Error, _ = json.Marshal(map[string]any{"code": res.StatusCode, "message": string(text), "type": "server_error"})
	}
	res.Body = io.NopCloser(strings.NewReader(o.failure(string(in.Error))))
	return nil
}

// failure returns the last event of a stream that ends with an error, which is an object.
func (o *opening) failure(err string) string {
	if o.p.api.loose {
		return "event: error\ndata: " + err + "\n\n"
	}
	return "data: {\"error\":" + err + "}\n\n"
}

// restamped is an answer in whose accounts the tokens that were computed before the request
// count as computed: the engine counts them as cached, and leaves out their time.
type restamped struct {
	io.ReadCloser
	staged *llamatier.Answer
	id     string // that the answer's events get, because events before them have it; "" for their own
	theirs string // the events' own

	in    []byte // not looked at yet
	out   []byte // not read yet
	err   error
	read  bool    // the next input_tokens are without those that were cached
	moved float64 // tokens of the account at hand that count as computed
	done  float64 // tokens of the account at hand that were computed
	took  float64 // milliseconds in which they were
}

// figure matches the id of an event, or a figure of an account. In a text, quotes have a backslash
// before them.
var figure = regexp.MustCompile(`"id":"chatcmpl-[A-Za-z0-9]*|"(cache_n|cached_tokens|cache_read_input_tokens|input_tokens|cache|time_ms|prompt_n|prompt_ms|prompt_per_token_ms|prompt_per_second)":(-?[0-9][0-9.eE+-]*)`)

// unfinished matches an end that may be the beginning of what figure matches.
var unfinished = regexp.MustCompile(`"id":"[A-Za-z0-9-]{0,45}$|"[a-z_]{0,24}("(:[0-9.eE+-]{0,30})?)?$`)

// Read implements io.Reader.
func (r *restamped) Read(p []byte) (int, error) {
	for len(r.out) == 0 && r.err == nil {
		var n int
		n, r.err = r.ReadCloser.Read(p)
		r.in = append(r.in, p[:n]...)
		upto := len(r.in)
		if at := unfinished.FindIndex(r.in[max(0, upto-64):]); at != nil && r.err == nil {
			upto += at[0] - min(upto, 64)
		}
		r.out = figure.ReplaceAllFunc(r.in[:upto], r.corrected)
		r.in = append(r.in[:0:0], r.in[upto:]...)
	}
	n := copy(p, r.out)
	if r.out = r.out[n:]; len(r.out) > 0 {
		return n, nil
	}
	return n, r.err
}

// corrected returns a figure with the staged tokens. Figures come in the order of an account.
func (r *restamped) corrected(text []byte) []byte {
	name, value, _ := bytes.Cut(text, []byte(":"))
	if string(name) == `"id"` {
		if r.theirs == "" {
			r.theirs = string(value)
		}
		if r.id == "" || string(value) != r.theirs {
			return text
		}
		return []byte(`"id":"` + r.id)
	}
	v, err := strconv.ParseFloat(string(value), 64)
	if err != nil {
		return text
	}
	switch tokens := float64(r.staged.Processed); string(name) {
	case `"cache_n"`, `"cached_tokens"`, `"cache"`:
		r.moved = min(v, tokens) // the slot may hold less
		v -= r.moved
	case `"cache_read_input_tokens"`:
		r.moved, r.read = min(v, tokens), true
		v -= r.moved
	case `"input_tokens"`:
		if r.read {
			v, r.read = v+r.moved, false
		}
	case `"time_ms"`: // of the progress, as "cache" is
		v += float64(r.staged.Took.Milliseconds())
	case `"prompt_n"`:
		v += r.moved
		r.done = v
	case `"prompt_ms"`:
		v += float64(r.staged.Took.Microseconds()) / 1e3
		r.took = v
	case `"prompt_per_token_ms"`:
		v = r.took / max(1, r.done)
	case `"prompt_per_second"`:
		v = r.done / max(1e-6, r.took/1e3)
	}
	out, err := json.Marshal(v)
	if err != nil {
		return text
	}
	return slices.Concat(name, []byte{':'}, out)
}
