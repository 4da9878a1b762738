package proxy

import (
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strconv"

	"github.com/kvtier/kvtier/llamatier"
)

// restamped is an answer in whose accounts the tokens that were computed before the request
// count as computed: the engine counts them as cached, and leaves out their time.
type restamped struct {
	io.ReadCloser
	staged *llamatier.Answer
	id     string // that the answer's events get, because events before them have it; "" for their own
	theirs string // the events' own

	in   []byte // not looked at yet
	out  []byte // not read yet
	err  error
	read bool    // the next input_tokens are without those that were cached
	done float64 // tokens of the account at hand that were computed
	took float64 // milliseconds in which they were
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
		v = max(0, v-tokens)
	case `"cache_read_input_tokens"`:
		v, r.read = max(0, v-tokens), true
	case `"input_tokens"`:
		if r.read {
			v, r.read = v+tokens, false
		}
	case `"time_ms"`: // of the progress, as "cache" is
		v += float64(r.staged.Took.Milliseconds())
	case `"prompt_n"`:
		v += tokens
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
