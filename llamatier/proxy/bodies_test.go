package proxy

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"

	"github.com/kvtier/kvtier/llamatier"
)

// TestBodiesAreBoundedTogether: a body for which there is no memory passes through as it comes,
// and nothing of it is lost.
func TestBodiesAreBoundedTogether(t *testing.T) {
	b := semaphore.NewWeighted(4 * bodyStep)
	requireFree := func(n int64) {
		require.False(t, b.TryAcquire(n+1))
		require.True(t, b.TryAcquire(n))
		b.Release(n)
	}
	request := func(n int, known bool) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", n)))
		if !known {
			r.ContentLength = -1
		}
		return r
	}
	var held []func()
	for _, c := range []struct {
		n     int
		known bool
		read  bool
		free  int64 // after it
	}{
		{100, true, true, 4*bodyStep - 101},
		{bodyStep, false, true, 2*bodyStep - 101}, // two steps, to find the end
		{2 * bodyStep, true, false, 2*bodyStep - 101},
		{3 * bodyStep, false, false, bodyStep - 101}, // found out too late
		{0, true, true, bodyStep - 102},
		{bodyMax + 1, true, false, bodyStep - 102},
	} {
		r := request(c.n, c.known)
		body, done, err := bodies{b, bodyMax}.read(r)
		require.NoError(t, err)
		held = append(held, done)
		require.Equal(t, c.read, body != nil, "%+v", c)
		requireFree(c.free)
		all := readAll(t, r.Body)
		require.Len(t, all, c.n)
		if c.read {
			require.True(t, all == string(body))
		}
	}
	for _, done := range held {
		done()
	}
	requireFree(4 * bodyStep)

	r := request(1, false)
	r.Body = io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF))
	_, done, err := bodies{b, bodyMax}.read(r)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	done()
	requireFree(4 * bodyStep)
}

// TestALongBodyWithoutALength passes through in time.
func TestALongBodyWithoutALength(t *testing.T) {
	b := semaphore.NewWeighted(bodiesMax)
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", bodyMax+5)))
	r.ContentLength = -1
	body, done, err := bodies{b, bodyMax}.read(r)
	require.NoError(t, err)
	require.Nil(t, body)
	n, err := io.Copy(io.Discard, r.Body)
	require.NoError(t, err)
	require.Equal(t, int64(bodyMax+5), n)
	done()
	require.True(t, b.TryAcquire(bodiesMax))
}

// lastByte is a body as a server has it: closed, once an answer to its last byte begins.
type lastByte struct{ io.Reader }

func (b *lastByte) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil {
		err = http.ErrBodyReadAfterClose
	}
	return n, err
}

// TestAnAnswerToTheLastByte of a request is not cut.
func TestAnAnswerToTheLastByte(t *testing.T) {
	engine := listen(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	state := State{Listening: func() bool { return true }, Ready: func() bool { return true }}
	h := New(engine, Ours{}, state, slog.New(slog.DiscardHandler))
	for _, path := range []string{"/tokenize", "/embedding"} {
		r := httptest.NewRequest(http.MethodPost, path, &lastByte{strings.NewReader("text")})
		r.ContentLength = 4
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, "text", w.Body.String(), path)
	}
}

// TestOurOptionsAreHidden from clients, and those of the people who started the server are not.
func TestOurOptionsAreHidden(t *testing.T) {
	props := `{"chat_template":"\"endpoint_metrics\":true` + strings.Repeat("x", propsMax/2) + `","endpoint_slots":true,"endpoint_metrics":true,"n":1}`
	long := `{"x":"` + strings.Repeat("x", propsMax) + `"}`
	answer := props
	engine := listen(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, answer) })
	state := State{Listening: func() bool { return false }, Ready: func() bool { return true }}
	for _, ours := range []Ours{{}, {SavePath: true, Metrics: true, Slots: true}} {
		url := web(t, New(engine, ours, state, slog.New(slog.DiscardHandler)))
		want, status := props, http.StatusOK
		if ours.Metrics {
			want, status = strings.Replace(props, `"endpoint_slots":true,"endpoint_metrics":true,"n"`, `"endpoint_slots":false,"endpoint_metrics":false,"n"`, 1), http.StatusNotImplemented
		}
		answer = props
		_, got := get(t, url+"/props")
		require.True(t, want == got)
		for _, path := range []string{"/metrics", "/slots"} {
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				got, _ := send(t, method, url+path, "", nil)
				require.Equal(t, status, got, path)
			}
		}
		refused, _ := post(t, url+"/slots/0?action=save", "{}")
		require.Equal(t, status, refused)

		answer = long
		_, got = get(t, url+"/props")
		require.True(t, long == got, "too long to look at")
	}
}

// TestRefusalsComeAfterOthers: first llama-server says that it is loading, then that a key is
// wrong, and then that an option is not set.
func TestRefusalsComeAfterOthers(t *testing.T) {
	engine := listen(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	ready := false
	state := State{Listening: func() bool { return true }, Ready: func() bool { return ready }}
	url := web(t, New(engine, Ours{SavePath: true, Keys: true}, state, slog.New(slog.DiscardHandler)))
	for _, want := range []int{http.StatusServiceUnavailable, http.StatusUnauthorized} {
		status, _ := post(t, url+"/slots/0?action=save", "{}")
		require.Equal(t, want, status)
		ready = true
	}
}

// TestTheFirstStepIsAddedToAnAccount, in pieces of any size, and nothing else is changed.
func TestTheFirstStepIsAddedToAnAccount(t *testing.T) {
	const (
		usage = `"usage":{"prompt_tokens":310,"prompt_tokens_details":{"cached_tokens":300}},`
		made  = `"timings":{"cache_n":300,"prompt_n":10,"prompt_ms":25.5,"prompt_per_token_ms":2.55,"prompt_per_second":392.15,"predicted_n":7,"predicted_ms":1e-3}`
		text  = `data: {"content":"\"cache_n\":300, \"timings\":{ and {"}` + "\n\n"
	)
	staged := &llamatier.Answer{Cached: 100, Processed: 200, Generated: 1, Took: 500 * time.Millisecond}
	want := strings.Replace(usage, `"cached_tokens":300`, `"cached_tokens":100`, 1) +
		`"timings":{"cache_n":100,"prompt_n":210,"prompt_ms":525.5,"prompt_per_token_ms":2.5023809523809524,"prompt_per_second":399.61941008563275,"predicted_n":7,"predicted_ms":1e-3}`
	for in, want := range map[string]string{
		text + `data: {` + usage + made + "}\n\ndata: [DONE]\n\n": text + `data: {` + want + "}\n\ndata: [DONE]\n\n",
		`{` + made + `,` + made + `}`:                             `{` + want[strings.Index(want, `"timings"`):] + `,` + want[strings.Index(want, `"timings"`):] + `}`,
		text:                                                      text,
		`{"cache_n":`:                                             `{"cache_n":`,
		`{"cache_n":-,"cached_tokens":5}`:                         `{"cache_n":-,"cached_tokens":0}`,
		`"prompt_progress":{"total":310,"cache":300,"processed":305,"time_ms":7}`: `"prompt_progress":{"total":310,"cache":100,"processed":305,"time_ms":507}`,
		"": "",
	} {
		for name, pieces := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader, "at the end": iotest.DataErrReader,
		} {
			r := &restamped{ReadCloser: io.NopCloser(pieces(strings.NewReader(in))), staged: staged}
			require.Equal(t, want, readAll(t, iotest.OneByteReader(r)), name)
		}
	}
}

// TestAnEventIsNotHeldBack: the client gets each event as soon as it came.
func TestAnEventIsNotHeldBack(t *testing.T) {
	in, out := io.Pipe()
	r := &restamped{ReadCloser: in, staged: &llamatier.Answer{}}
	buf := make([]byte, 100)
	for _, event := range []string{"data: {\"content\":\"a\"}\n\n", "data: {\"content\":\"say \\\"hi\\\"\"}\n\n", ":\n\n"} {
		go func() { _, _ = io.WriteString(out, event) }()
		n, err := r.Read(buf)
		require.NoError(t, err)
		require.Equal(t, event, string(buf[:n]))
	}
	require.NoError(t, out.CloseWithError(io.ErrUnexpectedEOF))
	_, err := r.Read(buf)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// TestABodyOfSmallValues: one that would take many times its own memory is not read.
func TestABodyOfSmallValues(t *testing.T) {
	for value, most := range map[string]int{"{}": objectsMax - 2, "5": valuesMax} {
		for n, want := range map[int]error{most: nil, most + 1: errManyValues} {
			_, err := readPrompt(httptest.NewRequest(http.MethodPost, "/infill", nil), []byte(`{"input_extra":[`+strings.Repeat(value+",", n)+value+`]}`), api{infill: true})
			require.Equal(t, want, err)
		}
	}
}

// TestTheAccountIsHeard of an answer whose members a request has named, and is not in what the client gets.
func TestTheAccountIsHeard(t *testing.T) {
	const made = `"timings":{"cache_n":300,"prompt_n":10,"prompt_ms":25.5,"predicted_n":7}`
	heard := &llamatier.Answer{Cached: 300, Processed: 10, Generated: 7, Took: 25500 * time.Microsecond}
	cut := `{"content":"` + strings.Repeat("a", answerMax-40) + `"`
	text := `{"content":"\"timings\":{}` + strings.Repeat("a", answerMax) + `"`
	for _, c := range []struct {
		fields, more string // of a request; "" if it passes as it is
		answer, want string // the engine's, and the client's
		heard        *llamatier.Answer
	}{
		{`["content"]`, `["content","timings"]`, `{"content":"\"timings\":{",` + made + `}`, `{"content":"\"timings\":{"}`, heard},
		{` [ "content" , "timings/prompt_n" ] `, `["content","timings/prompt_n","timings"]`, `{"content":"a","timings/prompt_n":10,` + made + `}`, `{"content":"a","timings/prompt_n":10}`, heard},
		{`["nothing"]`, `["nothing","timings"]`, `{` + made + `}`, `{}`, heard},
		{`["content"]`, `["content","timings"]`, `{"error":{"code":400}}`, `{"error":{"code":400}}`, nil},
		{`["content"]`, `["content","timings"]`, text + `,` + made + `}`, text + `,` + made + `}`, heard},
		{`["timings"]`, "", `{` + made + `}`, `{` + made + `}`, heard},
		{`["content",null]`, "", `{` + made + `,"a":5}`, `{` + made + `,"a":5}`, heard},
		{`["content"]`, `["content","timings"]`, cut + `,` + made + `}`, cut + `,` + made + `}`, heard},
		{`[]`, "", `{` + made + `}`, `{` + made + `}`, heard},
		{`[5]`, "", `{` + made + `}`, `{` + made + `}`, heard},
		{`["content"],"stream":true`, "", `{"content":"a"}`, `{"content":"a"}`, nil},
	} {
		body := `{"prompt":[1],"response_fields":` + c.fields + `}`
		p, err := readPrompt(httptest.NewRequest(http.MethodPost, "/infill", nil), []byte(body), api{})
		require.NoError(t, err)
		var sent struct {
			Fields json.RawMessage `json:"response_fields"`
		}
		require.NoError(t, json.Unmarshal(p.pinned([]byte(body), 7), &sent))
		if c.more != "" {
			require.JSONEq(t, c.more, string(sent.Fields))
		}
		require.Equal(t, c.more != "", p.account, body)
		e := &end{api: p.api, account: p.account}
		res := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(c.answer))}
		require.NoError(t, e.passes(res))
		got := readAll(t, res.Body)
		require.Equal(t, c.want, got)
		if length := res.Header.Get("Content-Length"); length != "" {
			require.Equal(t, strconv.Itoa(len(got)), length)
		}
		require.Equal(t, c.heard, e.answer(), body)
	}
	p, err := readPrompt(httptest.NewRequest(http.MethodPost, "/", nil), []byte(`{"response_fields":["a"]}`), prompts["/v1/completions"])
	require.NoError(t, err)
	require.False(t, p.account, "this API's answers are always whole")
}
