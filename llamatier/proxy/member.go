package proxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
)

// Two members of a body must be known before llama-server gets it: the salt of a tenant, and a number of llama-server's
// own for the form of a chat.

// formatMember is that number. llama-server has no use for one that comes with a prompt, and takes any; but asked for
// its slots after one that it does not know, it dies. In a chat it puts its own number in the place of the client's.
const formatMember = "chat_format"

// needed are the members of a body for a path that must be known.
func needed(path string) []string {
	if a, known := prompts[path]; known && !a.chat {
		return []string{saltMember, formatMember}
	}
	return []string{saltMember}
}

// plain returns the body of a prompt, which names text without a form in place of any other form.
func plain(r *http.Request, body []byte) ([]byte, error) {
	value, end, err := memberOf(body, formatMember)
	if err != nil || len(value) == 0 || !strings.ContainsRune("-0123456789", rune(value[0])) {
		return body, err
	}
	body = slices.Concat(body[:end], []byte(`,"`+formatMember+`":0`), body[end:])
	r.Body, r.ContentLength = joined{bytes.NewReader(body), r.Body}, int64(len(body))
	return body, nil
}

// unreadable is the name of a member that a body may have, which cannot be read.
type unreadable string

func (u unreadable) Error() string {
	return "the body may have a " + string(u) + ", and cannot be read"
}

// memberOf returns a member of a body, of several the last, as llama-server reads members, and the offset of the
// body's last brace. Without one the value is nil.
func memberOf(body []byte, name string) (value json.RawMessage, end int, err error) {
	if !mayHave(body, name) {
		return nil, 0, nil
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if begin, err := dec.Token(); err != nil || begin != json.Delim('{') {
		return nil, 0, unreadable(name)
	}
	for dec.More() {
		found, err := dec.Token()
		var next json.RawMessage
		if err != nil || dec.Decode(&next) != nil {
			return nil, 0, unreadable(name)
		}
		if found == name {
			value = next
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, 0, unreadable(name)
	}
	return value, int(dec.InputOffset()) - 1, nil
}

// mayHave reports whether some bytes may have a name of letters and underscores: as it is, or with escapes of these,
// which few write.
func mayHave(body []byte, name string) bool {
	for _, part := range []string{name, `\u005`, `\u006`, `\u007`} {
		if bytes.Contains(body, []byte(part)) {
			return true
		}
	}
	return false
}

// isObject reports whether a request's body begins as an object of JSON, which llama-server reads whole before it
// does anything. No other body has members, and an upload need not wait for its end.
func isObject(r *http.Request) bool {
	start := bufio.NewReader(r.Body)
	r.Body = joined{start, r.Body}
	for n := 1; ; n++ {
		read, err := start.Peek(n)
		if err != nil {
			return false
		}
		if last := read[n-1]; !strings.ContainsRune(" \t\r\n", rune(last)) {
			return last == '{'
		}
	}
}

// unread is a body that is not read before llama-server gets it. It ends with an error where it has a member that must
// be known, so that llama-server computes nothing.
type unread struct {
	io.ReadCloser
	names []string
	last  []byte // bytes that may begin a name
	found atomic.Pointer[unreadable]
}

func (u *unread) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	u.last = append(u.last, p[:n]...)
	longest := 0
	for _, name := range u.names {
		if longest = max(longest, len(name)); bytes.Contains(u.last, []byte(`"`+name+`"`)) {
			found := unreadable(name)
			u.found.Store(&found)
		}
	}
	if found := u.found.Load(); found != nil {
		return 0, *found
	}
	u.last = slices.Clone(u.last[max(0, len(u.last)-longest-1):])
	return n, err
}

// unreadKey is the key, in a request's context, of an unread body.
type unreadKey struct{}
