package proxy

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/kvtier/kvtier/llamatier"
)

// end is the end of an answer, as it passes.
type end struct {
	io.ReadCloser
	first []byte // at most firstBytes
	last  []byte // at most twice endBytes
	over  bool   // the engine has sent all
	ended bool   // ends was called; nothing changes any more

	sent    bool // the engine may have got the request
	api     api
	account bool          // the answer has its account for our sake alone
	began   time.Time     // when the request was sent
	prefill time.Duration // from then to the first event of a stream of Messages; 0 before
	ending  bool          // the last event of a stream of Responses has begun, which repeats the whole answer
	status  int           // of the answer

	turn    *llamatier.Turn
	comes   func()            // called when the first bytes do; nil for nothing
	ends    func()            // called when all was heard, before the client has the last bytes; nil for nothing
	staged  *llamatier.Answer // of the first steps of the prompt; nil if there were none
	opening *opening          // of the answer; nil if the client has nothing of it yet
}

// computed reports whether the engine may have computed anything for the request.
func (e *end) computed() bool {
	return e.sent && !refuses(e.api, e.status) && !(e.turn.TooLong && e.status/100 == 4)
}

// endBytes is more than llama-server sends after the account of an answer begins.
const endBytes = 16 << 10

// firstBytes is more than llama-server sends before the account of a prompt ends, in a stream that begins
// with it.
const firstBytes = 4 << 10

// passes listens to the engine's answer, and makes it the client's.
func (e *end) passes(res *http.Response) error {
	e.ReadCloser, res.Body = res.Body, e
	e.status = res.StatusCode
	if e.opening != nil {
		if err := e.opening.continued(res); err != nil {
			return err
		}
	}
	if e.staged != nil || e.opening != nil {
		res.Body = &restamped{ReadCloser: res.Body, staged: cmp.Or(e.staged, new(llamatier.Answer)), id: e.opening.named()}
		res.ContentLength = -1
		res.Header.Del("Content-Length")
	}
	if e.account {
		return change(res, answerMax, withoutAccount)
	}
	return nil
}

// answerMax bounds an answer that is whole before its account is taken out, in bytes.
const answerMax = 4 << 20

// withoutAccount returns an answer without its account, its last member. In a text, quotes have a backslash before
// them.
func withoutAccount(answer []byte) []byte {
	at := bytes.LastIndex(answer, []byte(`"timings":`))
	if at < 0 {
		return answer // an error
	}
	return append(bytes.TrimRight(answer[:at], ","), '}')
}

// Read implements io.Reader.
func (e *end) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if e.ended {
		return n, err
	}
	if e.comes != nil && n > 0 {
		e.comes()
	}
	if e.api.convert != nil {
		e.note(p[:n])
	}
	e.first = append(e.first, p[:min(n, firstBytes-len(e.first))]...)
	e.last = append(e.last, p[max(0, n-endBytes):n]...)
	if len(e.last) > 2*endBytes {
		e.last = append(e.last[:0], e.last[len(e.last)-endBytes:]...)
	}
	e.over = e.over || errors.Is(err, io.EOF)
	if e.ends != nil && e.whole() {
		e.ended = true
		e.ends()
	}
	return n, err
}

// note notes events of other APIs in the next bytes. In a text, line breaks are escaped.
func (e *end) note(next []byte) {
	begins := func(event string) bool {
		before := e.last[max(0, len(e.last)-len(event)):]
		return bytes.Contains(slices.Concat(before, next), []byte(event))
	}
	e.ending = e.ending || begins("\nevent: response.completed\n")
	if e.prefill == 0 && e.api.loose && begins("event: message_start\n") {
		e.prefill = time.Since(e.began)
	}
}

// whole reports whether all of the answer was heard. Many clients of a stream go away after the last event,
// before the engine ends the stream. The engine also ends a stream that a client has stopped, or that has
// failed, and goes on computing for a while; the last account in such a stream is too low.
func (e *end) whole() bool {
	if !bytes.HasSuffix(e.last, []byte("\n\n")) {
		return e.over
	}
	return e.ending || endsStream(e.last, e.api.chat)
}

// answer returns the engine's account of the answer; nil unless all of the answer was heard.
func (e *end) answer() *llamatier.Answer {
	if !e.whole() {
		return nil
	}
	if answer := llamatier.ReadAnswer(e.last); answer != nil && !e.api.loose {
		return answer
	}
	if e.api.convert == nil {
		return nil
	}
	answer := llamatier.ReadUsage(e.first, e.last)
	if answer != nil {
		answer.Took = e.prefill
	}
	return answer
}

// endsStream reports whether the latest bytes of an answer end with the last event of a stream:
// [DONE] or message_stop behind a chat, and otherwise an event that says why the answer ends. In a text,
// quotes have a backslash before them, and line breaks are escaped.
func endsStream(last []byte, chat bool) bool {
	event, whole := bytes.CutSuffix(last, []byte("\n\n"))
	if at := bytes.LastIndexByte(event, '\n'); at >= 0 {
		event = event[at+1:]
	}
	ends := func(text string) bool { return bytes.Contains(event, []byte(text)) }
	return whole && (bytes.Equal(event, []byte("data: [DONE]")) || ends(`"type":"message_stop"`) ||
		!chat && ends(`"stop_type":`)) // which a chat may have in the middle, with __verbose
}
