package llamatier

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/slotfile"
)

// Engine is a running llama-server. Methods may be called from several goroutines.
type Engine struct {
	Client *http.Client

	// MetricsOfClients says that clients may read the metrics: each reading begins new
	// averages, so nobody else may read them.
	MetricsOfClients bool

	// Key is the key that llama-server asks its clients for, "" for none.
	Key string
}

// Allows asks llama-server whether the key in the header of a client's request is right.
func (e *Engine) Allows(ctx context.Context, header http.Header) (bool, error) {
	client := &Engine{Client: e.Client}
	_, err := client.ask(ctx, http.MethodPost, "/tokenize", []byte(`{"content":""}`), http.Header{
		"Authorization": header["Authorization"], "X-Api-Key": header["X-Api-Key"],
	})
	if errors.Is(err, errWrongKey) {
		return false, nil
	}
	return err == nil, err
}

// Dial returns the llama-server that listens on a Unix socket. Each request has a connection
// of its own, so that llama-server notices when a request is given up.
func Dial(socket string) *Engine {
	var dialer net.Dialer
	return &Engine{Client: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			for {
				c, err := dialer.DialContext(ctx, "unix", socket)
				if !errors.Is(err, syscall.EAGAIN) {
					return c, err
				}
				select { // too many wait to be accepted, and a client of TCP would wait, too
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-time.After(dialEvery):
				}
			}
		},
	}}}
}

// dialEvery is the time between two attempts to reach an engine that many wait for.
const dialEvery = 5 * time.Millisecond

// Address is the address of a path of the engine. The host is never looked up.
func Address(path string) string { return "http://llama-server" + path }

// answerMax bounds an answer of the engine, in bytes.
const answerMax = 256 << 20

// call sends a request with a body of JSON, nil for none, and reads the answer into out.
func (e *Engine) call(ctx context.Context, method, path string, body, out any) error {
	var content []byte
	switch b := body.(type) {
	case nil:
	case json.RawMessage:
		content = b
	default:
		var err error
		if content, err = json.Marshal(b); err != nil {
			return fmt.Errorf("ask llama-server for %s: %w", path, err)
		}
	}
	answer, err := e.ask(ctx, method, path, content, e.header())
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("understand llama-server's answer to %s: %w", path, err)
	}
	return nil
}

var errRefused = errors.New("llama-server refuses")

var errWrongKey = fmt.Errorf("%w the key", errRefused)

func (e *Engine) header() http.Header {
	header := http.Header{}
	if e.Key != "" {
		header.Set("Authorization", "Bearer "+e.Key)
	}
	return header
}

// ask sends a request with a header and returns the answer.
func (e *Engine) ask(ctx context.Context, method, path string, body []byte, header http.Header) ([]byte, error) {
	res, err := e.open(ctx, method, path, body, header)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, answerMax))
	if err != nil {
		return nil, fmt.Errorf("read llama-server's answer to %s: %w", path, err)
	}
	return answer, nil
}

// open sends a request with a header and returns the answer, whose body is not read yet, unless it
// is an error.
func (e *Engine) open(ctx context.Context, method, path string, body []byte, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, Address(path), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = header
	req.Header.Set("Content-Type", "application/json")
	res, err := e.Client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask llama-server for %s: %w", path, err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusUnauthorized {
		return nil, fmt.Errorf("%w for %s", errWrongKey, path)
	}
	answer, _ := io.ReadAll(io.LimitReader(res.Body, 300)) // as much as there is
	return nil, fmt.Errorf("%w %s: %s: %s", errRefused, path, res.Status, bytes.TrimSpace(answer))
}

// Tokenize returns the tokens of a prompt or, unless it is the first text, of a later text of a prompt. A text is
// a string, or a list in JSON of strings and tokens. It may have the names of control tokens.
func (e *Engine) Tokenize(ctx context.Context, text any, first, control bool) ([]int32, error) {
	in := map[string]any{"content": text, "add_special": first, "parse_special": control}
	var out struct {
		Tokens []int32 `json:"tokens"`
	}
	err := e.call(ctx, http.MethodPost, "/tokenize", in, &out)
	return out.Tokens, err
}

// Detokenize returns the text of some tokens.
func (e *Engine) Detokenize(ctx context.Context, tokens []int32) (string, error) {
	var out struct {
		Content string `json:"content"`
	}
	err := e.call(ctx, http.MethodPost, "/detokenize", map[string]any{"tokens": tokens}, &out)
	return out.Content, err
}

// Template returns the prompt that llama-server makes of a chat, the body of a request to
// /v1/chat/completions.
func (e *Engine) Template(ctx context.Context, chat []byte) (string, error) {
	var out struct {
		Prompt string `json:"prompt"`
	}
	err := e.call(ctx, http.MethodPost, "/apply-template", json.RawMessage(chat), &out)
	return out.Prompt, err
}

// MediaMark returns the text that stands for an image or sound in a prompt.
func (e *Engine) MediaMark(ctx context.Context) (string, error) {
	var out struct {
		Mark string `json:"media_marker"`
	}
	if err := e.call(ctx, http.MethodGet, "/props", nil, &out); err != nil {
		return "", err
	}
	if out.Mark == "" {
		return "", errors.New("llama-server does not say how a prompt refers to an image")
	}
	return out.Mark, nil
}

// Slot is the state of a slot.
type Slot struct {
	Running bool // a request is not over
	Context int  // tokens that the slot has room for
	Held    int  // tokens that the slot holds
	Task    int  // number of the last request in it; actions have none
}

// Slots returns the state of every slot.
func (e *Engine) Slots(ctx context.Context) ([]Slot, error) {
	var out []struct {
		Running bool `json:"is_processing"`
		Context int  `json:"n_ctx"`
		Held    int  `json:"n_prompt_tokens"`
		Task    int  `json:"id_task"`
	}
	if err := e.call(ctx, http.MethodGet, "/slots", nil, &out); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, errors.New("llama-server has no slots")
	}
	var slots []Slot
	for _, s := range out {
		if s.Context < 0 || s.Held < 0 {
			return nil, fmt.Errorf("llama-server has a slot with %d of %d tokens", s.Held, s.Context)
		}
		slots = append(slots, Slot(s))
	}
	return slots, nil
}

// generated matches the counter of the tokens of all answers that are over.
var generated = regexp.MustCompile(`(?m)^llamacpp:tokens_predicted_total ([0-9]+)((?:\.[0-9]+)?e\+[0-9]+)?$`)

// errUncounted reports that nobody may ever know how many tokens the engine has generated.
var errUncounted = errors.New("the tokens of answers are not known")

// Generated returns bounds of the number of tokens of all answers that are over, given up or
// not. llama-server prints six digits: from a million on, the number is rounded.
func (e *Engine) Generated(ctx context.Context) (least, most int, err error) {
	if e.MetricsOfClients {
		return 0, 0, fmt.Errorf("%w: clients read the averages since the last reading of --metrics", errUncounted)
	}
	text, err := e.ask(ctx, http.MethodGet, "/metrics", nil, e.header())
	if err != nil {
		return 0, 0, err
	}
	return readGenerated(text)
}

func readGenerated(metrics []byte) (least, most int, err error) {
	m := generated.FindSubmatch(metrics)
	if m == nil {
		return 0, 0, fmt.Errorf("%w: llama-server does not count them", errUncounted)
	}
	if len(m[2]) == 0 {
		n, err := strconv.Atoi(string(m[1]))
		return n, n, err
	}
	n, err := strconv.ParseFloat(string(m[1])+string(m[2]), 64)
	if err != nil || n > countMax {
		return 0, 0, fmt.Errorf("llama-server has counted %s%s tokens", m[1], m[2])
	}
	half := math.Pow(10, math.Floor(math.Log10(n))-countDigits+1) / 2
	return int(n - half), int(math.Ceil(n + half)), nil
}

const (
	countDigits = 6    // of a number that llama-server prints
	countMax    = 1e15 // tokens, above any count
)

// Save saves a slot into a file below the engine's --slot-save-path.
func (e *Engine) Save(ctx context.Context, slot int, file string) error {
	return e.act(ctx, slot, "save", map[string]string{"filename": file})
}

// Restore replaces the sequence of a slot by that of a saved file. After an error the slot is
// empty, or as it was.
func (e *Engine) Restore(ctx context.Context, slot int, file string) error {
	return e.act(ctx, slot, "restore", map[string]string{"filename": file})
}

// Erase empties a slot.
func (e *Engine) Erase(ctx context.Context, slot int) error {
	return e.act(ctx, slot, "erase", struct{}{})
}

// act carries out an action even if ctx ends: llama-server may carry it out later, and the
// action's file must stay as it is until then.
func (e *Engine) act(ctx context.Context, slot int, action string, in any) error {
	var out struct{}
	return e.call(context.WithoutCancel(ctx), http.MethodPost, fmt.Sprintf("/slots/%d?action=%s", slot, action), in, &out)
}

// Answer is the engine's account of a request, which the end of an answer carries. A slot
// that is full has its context shifted: later tokens move, and their rows with them. The
// numbers show whether a request can have filled its slot.
type Answer struct {
	Cached    int // tokens of the prompt that the slot held before
	Processed int // tokens of the prompt that were computed
	Generated int // tokens of the answer

	Took time.Duration // to compute Processed; 0: not known
}

// seen is the number of tokens of the prompt and the answer.
func (a *Answer) seen() int { return a.Cached + a.Processed + a.Generated }

// after joins the account of a step to that of the steps before, which may be nil.
func (a *Answer) after(before *Answer) *Answer {
	if before == nil {
		return a
	}
	return &Answer{Cached: before.Cached, Processed: before.Processed + a.Processed, Generated: a.Generated, Took: before.Took + a.Took}
}

// ReadAnswer finds the account of an answer in the answer's last bytes. It returns nil if there is none.
func ReadAnswer(last []byte) *Answer {
	key := []byte(`"timings":`)
	at := bytes.LastIndex(last, key)
	if at < 0 {
		return nil
	}
	var a struct {
		Cached    *int    `json:"cache_n"`
		Processed *int    `json:"prompt_n"`
		Generated *int    `json:"predicted_n"`
		Millis    float64 `json:"prompt_ms"`
	}
	dec := json.NewDecoder(bytes.NewReader(last[at+len(key):]))
	if dec.Decode(&a) != nil || a.Cached == nil || a.Processed == nil || a.Generated == nil {
		return nil
	}
	took := time.Duration(a.Millis * float64(time.Millisecond))
	return &Answer{Cached: *a.Cached, Processed: *a.Processed, Generated: *a.Generated, Took: took}
}

// ReadUsage finds the account of an answer of another API in the answer's first and last bytes: it has
// no time. In a stream of Messages the figures of the prompt come first. ReadUsage returns nil if
// there is no account.
func ReadUsage(first, last []byte) *Answer {
	prompt, answer := usageAt(first, bytes.Index), usageAt(last, bytes.LastIndex)
	if answer.Input != nil {
		prompt = answer
	}
	switch {
	case answer.Output == nil || prompt.Input == nil:
		return nil
	case prompt.Read != nil: // Messages
		return &Answer{Cached: *prompt.Read, Processed: *prompt.Input, Generated: *answer.Output}
	}
	cached := prompt.Details.Cached
	return &Answer{Cached: cached, Processed: *prompt.Input - cached, Generated: *answer.Output}
}

// usage is the account of an answer of another API. In Messages, the input is without what was read.
type usage struct {
	Input   *int `json:"input_tokens"`
	Output  *int `json:"output_tokens"`
	Read    *int `json:"cache_read_input_tokens"`
	Details struct {
		Cached int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
}

func usageAt(text []byte, index func(s, sep []byte) int) (u usage) {
	key := []byte(`"usage":`)
	if at := index(text, key); at >= 0 {
		if json.NewDecoder(bytes.NewReader(text[at+len(key):])).Decode(&u) != nil {
			return usage{}
		}
	}
	return u
}

// WaitReady waits until the engine has loaded its model, and calls listening when the engine
// has answered for the first time. It returns an error only when ctx ends: an engine that fails
// to load ends, and its daemon with it.
func (e *Engine) WaitReady(ctx context.Context, listening func()) error {
	for heard := false; ; {
		var out struct{}
		err := e.call(ctx, http.MethodGet, "/health", nil, &out)
		if !heard && (err == nil || errors.Is(err, errRefused)) {
			heard = true
			listening()
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(readyEvery):
		}
	}
}

// readyEvery is the time between two looks at an engine that is loading.
const readyEvery = 20 * time.Millisecond

// Progress says how far the engine is with a prompt.
type Progress struct {
	Header    http.Header // of the engine's answer
	Cached    int         // tokens that the slot held before
	Processed int         // these, and those that are computed
	Took      time.Duration
}

// Listener hears how far the engine is with the first parts of a prompt: when one begins, and after each
// batch.
type Listener struct {
	Origin string // of the request, which the header of the engine's answer names; "" without
	Hear   func(Progress)
}

// after is the listener of a step behind others, whose account may be nil.
func (l Listener) after(before *Answer) Listener {
	if hear := l.Hear; hear != nil && before != nil {
		l.Hear = func(p Progress) {
			p.Cached, p.Took = before.Cached, before.Took+p.Took
			hear(p)
		}
	}
	return l
}

// Prefill computes a prompt in a slot and drops the answer, of which it returns the account. The request has
// other members as well.
func (e *Engine) Prefill(ctx context.Context, slot int, tokens []int32, others map[string]json.RawMessage, l Listener) (*Answer, error) {
	in := map[string]any{"temperature": 0}
	for name, value := range others {
		in[name] = value
	}
	maps.Copy(in, map[string]any{
		"prompt": tokens, "n_predict": 0, "id_slot": slot, "cache_prompt": true, "stream": true, "return_progress": true,
	})
	body, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("ask llama-server for a prompt: %w", err)
	}
	header := e.header()
	if l.Origin != "" {
		header.Set("Origin", l.Origin)
	}
	res, err := e.open(ctx, http.MethodPost, "/completion", body, header)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var answer *Answer
	for events := bufio.NewReader(io.LimitReader(res.Body, answerMax)); ; {
		event, err := events.ReadBytes('\n')
		if p := readProgress(event); p != nil && l.Hear != nil {
			p.Header = res.Header
			l.Hear(*p)
		}
		if last := ReadAnswer(event); last != nil {
			answer = last
		}
		switch {
		case errors.Is(err, io.EOF) && answer == nil:
			return nil, errors.New("llama-server does not say how much it computed")
		case errors.Is(err, io.EOF):
			return answer, nil
		case err != nil:
			return nil, fmt.Errorf("read llama-server's answer to a prompt: %w", err)
		}
	}
}

// readProgress finds the progress in an event of a stream; nil if there is none.
func readProgress(event []byte) *Progress {
	data, found := bytes.CutPrefix(event, []byte("data: "))
	var in struct {
		Progress *struct {
			Cache     int   `json:"cache"`
			Processed int   `json:"processed"`
			Millis    int64 `json:"time_ms"`
		} `json:"prompt_progress"`
	}
	if !found || json.Unmarshal(data, &in) != nil || in.Progress == nil {
		return nil
	}
	return &Progress{Cached: in.Progress.Cache, Processed: in.Progress.Processed, Took: time.Duration(in.Progress.Millis) * time.Millisecond}
}

// Shape finds the shape of an engine's files: it computes one token in a slot, saves the slot
// and empties it again. The engine must not have answered any request yet. Shape returns an
// error when ctx ends, although the engine may still use its file.
func Shape(ctx context.Context, e *Engine, files *slotfile.Files) (*llamastate.Shape, error) {
	if _, err := e.Prefill(ctx, 0, []int32{0}, nil, Listener{}); err != nil {
		return nil, err
	}
	learned := make(chan struct{})
	var shape *llamastate.Shape
	var err error
	go func() { // a disk may hang
		defer close(learned)
		shape, err = learn(ctx, e, files)
	}()
	select {
	case <-learned:
		return shape, err
	case <-ctx.Done():
		return nil, fmt.Errorf("llama-server does not save a slot: %w", ctx.Err())
	}
}

// learn has the engine save a slot, and reads the file's shape.
func learn(ctx context.Context, e *Engine, files *slotfile.Files) (*llamastate.Shape, error) {
	f, err := files.New(shapeBytes)
	if err != nil {
		return nil, err
	}
	defer f.Close() // nothing is lost: the file was learned from
	if err := errors.Join(e.Save(ctx, 0, f.Name), e.Erase(ctx, 0)); err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return llamastate.Learn(f, info.Size())
}

// shapeBytes is about the size of the file of one token: the states of recurrent layers may be some 10 MB.
const shapeBytes = 64 << 20

// UserStart finds the tokens with which a user's message begins in chats of an engine, from a control
// token on; nil if its template does not tell. A first message and a later one have them in common.
func UserStart(ctx context.Context, e *Engine, control func(token int32) bool) ([]int32, error) {
	message := func(role, content string) map[string]string {
		return map[string]string{"role": role, "content": content}
	}
	const first, between, later = "one question", "an answer", "another question"
	chat, err := json.Marshal(map[string]any{"messages": []any{message("user", first), message("assistant", between), message("user", later)}})
	if err != nil {
		return nil, fmt.Errorf("ask llama-server for a chat's form: %w", err)
	}
	text, err := e.Template(ctx, chat)
	if err != nil {
		return nil, err
	}
	before, rest, _ := strings.Cut(text, first)
	_, rest, _ = strings.Cut(rest, between)
	next, _, found := strings.Cut(rest, later)
	if !found {
		return nil, nil
	}
	var starts [2][]int32
	for i, text := range []string{before, next} { // a space may become a token with the words behind it
		if starts[i], err = e.Tokenize(ctx, strings.TrimSpace(text), true, true); err != nil {
			return nil, err
		}
		slices.Reverse(starts[i])
	}
	start := starts[0][:commonPrefix(starts[0], starts[1])]
	slices.Reverse(start)
	at := slices.IndexFunc(start, control)
	if at < 0 {
		return nil, nil
	}
	return start[at:], nil
}
