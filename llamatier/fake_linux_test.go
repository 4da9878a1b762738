package llamatier

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/llamastate"
)

// fakeShape has two layers of K and V.
var fakeShape = &llamastate.Shape{Version: 2, Caches: []llamastate.Cache{{
	Kind: llamastate.Full, Streams: 1, Layers: 2,
	Tensors: [2][]llamastate.Tensor{{{Type: 1, Row: 32}, {Type: 1, Row: 32}}, {{Type: 1, Row: 32}, {Type: 1, Row: 32}}},
}}}

// hybridShape has a state besides, which exists only after the last token.
var hybridShape = &llamastate.Shape{Version: 2, Caches: append(slices.Clone(fakeShape.Caches), llamastate.Cache{
	Kind: llamastate.Recurrent, Layers: 3,
	Tensors: [2][]llamastate.Tensor{{{Type: 0, Row: 32}}, {{Type: 0, Row: 32}}},
})}

// fakeEngine is a llama-server. The row of a token is a hash of all tokens up to it, so a row
// in a wrong place shows. As llama-server does, it holds back an action on a slot that is in
// use, answers looks at its slots between two actions, shifts the context of a full slot, empties
// a slot that a restore fails for, and goes on with a request for a while after its client is
// gone. With a state, it goes back to no token but the first.
type fakeEngine struct {
	t       require.TestingT
	shape   *llamastate.Shape
	dir     string // of the files of slots
	context int    // tokens for each slot
	keep    int    // tokens that a shift keeps; 0 means 1
	still   bool   // an answer ends where its slot is full, in place of a shift
	late    int    // tokens that are generated after the client is gone
	lie     string // in place of its slots; "" without
	room    int    // tokens for all slots together; 0 without a limit
	near    bool   // rows of lossy pages are restored: see nearly
	drafts  bool   // a draft model reads what the slots read, and fails where it misses positions

	similarity float64 // as in Options

	whim func(free []*fakeSlot) *fakeSlot // chooses another slot than llama-server would; nil for that

	loop sync.Mutex // held during an action, during a look at the slots, and while a slot is chosen

	mu     sync.Mutex
	slots  []*fakeSlot
	refuse map[string]int    // so many requests to these paths, with or without a query, fail
	enter  map[string]func() // called when the next request to a path arrives
	leave  map[string]func() // called when the next request to a path with its query was carried out
	asked  map[string]int    // requests to each path

	clock     int
	generated int // tokens of all answers that are over
	restored  int
	computed  int
	cached    int
}

// fakeSlot is a slot of a fakeEngine.
type fakeSlot struct {
	use      sync.Mutex
	tokens   []int32
	rows     [][]byte // of each token; a row stays when tokens before it are dropped
	requests atomic.Int64
	drafts   int // position up to which the draft model has rows; 0 without rows, wherever the next begins
	left     int // when the last request was over, on the engine's clock
}

func newFake(t require.TestingT, slots, context int) *fakeEngine {
	f := &fakeEngine{t: t, shape: fakeShape, context: context, similarity: similar, refuse: map[string]int{}, enter: map[string]func(){}, leave: map[string]func(){}, asked: map[string]int{}}
	for range slots {
		f.slots = append(f.slots, &fakeSlot{})
	}
	return f
}

// engine returns the client's side.
func (f *fakeEngine) engine() *Engine {
	return &Engine{Client: &http.Client{Transport: f}}
}

// onEnter has do called when the next request to a path arrives. The Tier may ask other things
// meanwhile.
func (f *fakeEngine) onEnter(path string, do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enter[path] = do
}

// onLeave has do called when the next request to a path with its query was carried out, before the
// Tier gets the answer.
func (f *fakeEngine) onLeave(path string, do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leave[path] = do
}

// refuseNext has the next n requests to a path, with or without a query, fail.
func (f *fakeEngine) refuseNext(path string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse[path] = n
}

// requests returns how many requests each path got since the last call.
func (f *fakeEngine) requests() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = map[string]int{}
	return asked
}

// RoundTrip implements http.RoundTripper.
func (f *fakeEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	refused := false
	for _, key := range []string{r.URL.Path, r.URL.RequestURI()} {
		if !refused && f.refuse[key] > 0 {
			refused = true
			f.refuse[key]--
		}
	}
	f.asked[r.URL.Path]++
	enter := f.enter[r.URL.Path]
	leave := f.leave[r.URL.RequestURI()]
	delete(f.enter, r.URL.Path)
	delete(f.leave, r.URL.RequestURI())
	f.mu.Unlock()
	if enter != nil {
		enter()
	}
	w := httptest.NewRecorder()
	if refused {
		http.Error(w, "refused", http.StatusInternalServerError)
	} else {
		f.serve(w, r)
	}
	if leave != nil {
		leave()
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

func (f *fakeEngine) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	require.NoError(f.t, err)
	switch {
	case r.URL.Path == "/slots":
		f.serveSlots(w)
	case r.URL.Path == "/metrics":
		f.mu.Lock()
		fmt.Fprintf(w, "# HELP some\nllamacpp:tokens_predicted_total %.6g\n", float64(f.generated)) // as C++ prints
		f.mu.Unlock()
	case strings.HasPrefix(r.URL.Path, "/slots/"):
		id, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/slots/"))
		require.NoError(f.t, err)
		var in struct{ Filename string }
		require.NoError(f.t, json.Unmarshal(body, &in))
		f.act(w, f.slots[id], r.URL.Query().Get("action"), in.Filename)
	case r.URL.Path == "/completion":
		var in struct {
			Prompt  []int32 `json:"prompt"`
			Predict int     `json:"n_predict"`
			Slot    int     `json:"id_slot"`
		}
		require.NoError(f.t, json.Unmarshal(body, &in))
		a := f.slots[in.Slot].complete(f, r.Context(), in.Prompt, in.Predict)
		if a == nil {
			http.Error(w, "request exceeds the available context size", http.StatusBadRequest)
		} else {
			for _, done := range []int{0, a.Processed / 2, a.Processed} {
				fmt.Fprintf(w, "data: {\"prompt_progress\":{\"total\":%d,\"cache\":%d,\"processed\":%d,\"time_ms\":%d}}\n\n", len(in.Prompt), a.Cached, a.Cached+done, 20*done)
			}
			fmt.Fprintf(w, "data: {\"timings\":{\"cache_n\":%d,\"prompt_n\":%d,\"predicted_n\":%d,\"prompt_ms\":%d}}\n\n", a.Cached, a.Processed, a.Generated, 20*a.Processed)
		}
	default:
		http.NotFound(w, r)
	}
}

func (f *fakeEngine) serveSlots(w http.ResponseWriter) {
	f.loop.Lock()
	defer f.loop.Unlock()
	if f.lie != "" {
		_, _ = io.WriteString(w, f.lie)
		return
	}
	var out []map[string]any
	for _, s := range f.slots {
		running := !s.use.TryLock()
		held := 0
		if !running {
			held = len(s.tokens)
			s.use.Unlock()
		}
		out = append(out, map[string]any{"is_processing": running, "n_ctx": f.context, "n_prompt_tokens": held, "id_task": s.requests.Load()})
	}
	require.NoError(f.t, json.NewEncoder(w).Encode(out))
}

// row is the row of the last of tokens.
func row(tokens []int32) []byte {
	h := sha256.New()
	for _, tok := range tokens {
		_ = binary.Write(h, binary.LittleEndian, tok) // a hash has no errors
	}
	return h.Sum(nil)
}

// complete computes a prompt, generates an answer, and returns an account of both, nil if the
// client is gone, or if the engine refuses the prompt.
func (s *fakeSlot) complete(f *fakeEngine, ctx context.Context, prompt []int32, predict int) *Answer {
	s.use.Lock()
	s.requests.Add(1)
	return s.run(f, ctx, prompt, predict)
}

// choose waits for a free slot and chooses one for a prompt, as llama-server does for a request that names none.
// The slot is in use then.
func (f *fakeEngine) choose(prompt []int32) (chosen *fakeSlot) {
	for chosen = f.chooseNow(prompt); chosen == nil; chosen = f.chooseNow(prompt) {
		f.slots[0].awaitFree()
	}
	return chosen
}

func (f *fakeEngine) chooseNow(prompt []int32) (chosen *fakeSlot) {
	f.loop.Lock()
	defer f.loop.Unlock()
	var free []*fakeSlot
	for _, s := range f.slots {
		if s.use.TryLock() {
			free = append(free, s)
			defer func() {
				if s != chosen {
					s.use.Unlock()
				}
			}()
		}
	}
	if len(free) == 0 {
		return nil
	}
	defer func() { chosen.requests.Add(1) }()
	if f.whim != nil {
		return f.whim(free)
	}
	most := f.similarity * float64(len(prompt))
	for _, s := range free {
		if n := float64(commonPrefix(s.tokens, prompt)); f.similarity > 0 && n > most {
			chosen, most = s, n
		}
	}
	if chosen == nil {
		for _, s := range free {
			if chosen == nil || s.left <= chosen.left {
				chosen = s
			}
		}
	}
	return chosen
}

// run is complete in a slot that is in use.
func (s *fakeSlot) run(f *fakeEngine, ctx context.Context, prompt []int32, predict int) *Answer {
	defer s.use.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.clock++
		s.left = f.clock
	}()
	if len(prompt) >= f.context {
		return nil
	}
	n := min(commonPrefix(s.tokens, prompt), len(prompt)-1)
	if f.shape.HasEnd() && n < len(s.tokens) {
		n = 0
	}
	s.tokens, s.rows = s.tokens[:n:n], s.rows[:n:n]
	s.drafts = min(s.drafts, n)
	if f.drafts && s.drafts > 0 && s.drafts < n {
		require.Failf(f.t, "llama-server fails", "a draft model has rows up to %d, and is given position %d", s.drafts, n)
	}
	defer func() { s.drafts = len(s.tokens) }()
	a := &Answer{Cached: n, Processed: len(prompt) - n}
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.generated += a.Generated
	}()
	f.mu.Lock()
	f.cached, f.computed = f.cached+n, f.computed+len(prompt)-n
	f.mu.Unlock()
	for _, tok := range prompt[n:] {
		s.add(tok)
	}
	late := f.late
	for next := prompt[len(prompt)-1]; ; {
		next = (next*31 + int32(len(s.tokens))) % 997
		a.Generated++
		if a.Generated >= predict && ctx.Err() == nil {
			for n := len(s.tokens) % 5; f.drafts && n > 0 && len(s.tokens)+2 < f.context; n-- {
				s.add(next) // drafts behind the end of the answer, which were right
				next++
			}
			return a // the last token is not computed
		}
		if ctx.Err() != nil {
			if late--; late < 0 {
				return nil
			}
		}
		switch full := len(s.tokens)+1 >= f.context; {
		case full && f.still && ctx.Err() != nil:
			return nil
		case full && f.still:
			return a
		case full:
			s.shift(f.keep)
		}
		s.add(next)
	}
}

// add computes one token.
func (s *fakeSlot) add(tok int32) {
	s.tokens = append(s.tokens, tok)
	next := row(s.tokens)
	if n := len(s.rows); n > 0 && slices.Equal(s.rows[n-1], nearly(row(s.tokens[:n]))) {
		nearly(next) // a row behind a lossy one depends on it
	}
	s.rows = append(s.rows, next)
}

// nearly changes an exact row into that of a lossy page.
func nearly(row []byte) []byte {
	for i := range row {
		row[i] ^= 0x11
	}
	return row
}

// shift drops half of the tokens after the first ones. Rows of later tokens stay.
func (s *fakeSlot) shift(keep int) {
	keep = max(1, keep)
	half := keep + (len(s.tokens)-keep)/2
	s.tokens = slices.Concat(s.tokens[:keep], s.tokens[half:])
	s.rows = slices.Concat(s.rows[:keep], s.rows[half:])
}

// act carries out an action when the slot is free.
func (f *fakeEngine) act(w http.ResponseWriter, s *fakeSlot, action, name string) {
	for f.loop.Lock(); !s.use.TryLock(); f.loop.Lock() {
		f.loop.Unlock()
		s.awaitFree()
	}
	defer f.loop.Unlock()
	defer s.use.Unlock()
	var err error
	switch action {
	case "erase":
		s.tokens, s.rows, s.drafts = nil, nil, 0
	case "save":
		err = s.save(f.shape, filepath.Join(f.dir, name))
	case "restore":
		var n int
		if n, err = s.restore(f, filepath.Join(f.dir, name)); err == nil && f.room > 0 && f.held() > f.room {
			err = fmt.Errorf("No available space in KV cache")
		}
		if err != nil {
			s.tokens, s.rows, s.drafts = nil, nil, 0
		}
		f.mu.Lock()
		f.restored += n
		f.mu.Unlock()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprint(w, "{}")
}

// awaitFree waits until no request runs in a slot.
func (s *fakeSlot) awaitFree() {
	s.use.Lock()
	defer s.use.Unlock()
}

// held is the number of tokens in all slots, which no request may use.
func (f *fakeEngine) held() (n int) {
	for _, s := range f.slots {
		n += len(s.tokens)
	}
	return n
}

// pageOf is the layout of all tokens of a slot, and their rows in it.
func pageOf(shape *llamastate.Shape, n int) (pagefile.Layout, []byte) {
	layout, err := pagefile.NewLayout(shape.EndSections(0), n)
	if err != nil {
		panic(err) // the sections are constants
	}
	return layout, make([]byte, layout.Size())
}

// eachRow calls f with each row of a layout, and the number of tokens that it belongs to.
func eachRow(layout pagefile.Layout, buf []byte, f func(row []byte, tokens int)) {
	for i := range layout.Len() {
		rows := layout.Rows(buf, i)
		for at := 0; at < len(rows); at += 32 {
			f(rows[at:][:32], layout.Tokens()-(len(rows)-at)/32+1)
		}
	}
}

// open opens a file as a program in C does: Go would poll a file that this process serves itself.
func open(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	return os.NewFile(uintptr(fd), path), err
}

func (s *fakeSlot) save(shape *llamastate.Shape, path string) error {
	f, err := open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return err
	}
	defer f.Close()
	var h heads
	b, err := shape.Build(&h, s.tokens, nil, 0)
	if err != nil {
		return err
	}
	file := make([]byte, b.Size())
	h.copyTo(file, 0)
	layout, buf := pageOf(shape, len(s.tokens))
	eachRow(layout, buf, func(row []byte, tokens int) { copy(row, s.rows[tokens-1]) })
	if err := b.To(&rangeWriter{file, 0}).WriteRows(layout, 0, layout.Tokens(), buf); err != nil {
		return err
	}
	if err := write(f, file); err != nil || !shape.HasEnd() {
		return err
	}
	more, err := open(path, unix.O_WRONLY|unix.O_APPEND)
	if err != nil {
		return err
	}
	defer more.Close()
	return write(more, checkpoints(len(s.tokens)))
}

// write writes in order, as a buffer of C is emptied.
func write(f *os.File, b []byte) error {
	for at := 0; at < len(b); at += 777 {
		if _, err := f.Write(b[at:min(at+777, len(b))]); err != nil {
			return err
		}
	}
	return nil
}

// checkpoints are states of earlier positions of n tokens, which llama-server appends to a file.
func checkpoints(n int) []byte {
	count := min(n-1, 3)
	b := binary.LittleEndian.AppendUint32([]byte("SCKP\x01\x00\x00\x00"), uint32(count))
	for i := range count {
		b = binary.LittleEndian.AppendUint64(b, uint64(i+1))
		b = binary.LittleEndian.AppendUint64(b, uint64(i)<<32|uint64(i))
		b = binary.LittleEndian.AppendUint64(b, 1000)
		b = append(b, make([]byte, 1000+2*8)...)
	}
	return b
}

// restore reads a file, and requires that each row is the row of its token.
func (s *fakeSlot) restore(e *fakeEngine, path string) (int, error) {
	f, err := open(path, unix.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	state, err := e.shape.Open(f, info.Size())
	if err != nil {
		return 0, err
	}
	layout, buf := pageOf(e.shape, len(state.Tokens))
	if err := state.ReadRows(layout, 0, buf); err != nil {
		return 0, err
	}
	s.tokens, s.rows = state.Tokens, nil
	for n := range state.Tokens {
		s.rows = append(s.rows, row(state.Tokens[:n+1]))
	}
	eachRow(layout, buf, func(row []byte, tokens int) {
		if !slices.Equal(row, s.rows[tokens-1]) && e.near && slices.Equal(row, nearly(slices.Clone(s.rows[tokens-1]))) {
			nearly(s.rows[tokens-1])
		}
		if !slices.Equal(row, s.rows[tokens-1]) {
			e.t.Errorf("a file with the row of another sequence for token %d of %d", tokens, len(state.Tokens))
			err = fmt.Errorf("wrong row")
		}
	})
	return len(state.Tokens), err
}

// TestAnEngineThatManyWaitFor is waited for: a Unix socket refuses connections that a TCP port
// would let wait.
func TestAnEngineThatManyWaitFor(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: socket}))
	require.NoError(t, unix.Listen(fd, 0))
	for err = error(nil); err == nil; {
		var c net.Conn
		if c, err = net.Dial("unix", socket); err == nil {
			defer c.Close()
		}
	}
	require.True(t, errors.Is(err, unix.EAGAIN), "%v", err)

	dialed := make(chan error, 1)
	e := Dial(socket)
	go func() {
		_, err := e.ask(t.Context(), http.MethodGet, "/", nil, http.Header{})
		dialed <- err
	}()
	l, err := net.FileListener(f)
	require.NoError(t, err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "{}") })}
	go func() { _ = s.Serve(l) }()
	require.NoError(t, <-dialed)
	require.NoError(t, s.Close())
}
