package proxy

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kvtier/kvtier/llamatier"
)

// A request's tenant follows from its API key and from the member cache_salt of its body. Nothing of both is logged.

const saltMember = "cache_salt"

var (
	errSalt   = errors.New("cache_salt must be a text, and not an empty one")
	errSalted = errors.New("the body may have a cache_salt, and cannot be read")
)

// tenant returns the tenant of a request. A body of nil has no salt.
func (h *Handler) tenant(r *http.Request, body []byte) (of llamatier.Tenant, err error) {
	salt, err := saltOf(body)
	if err != nil {
		return of, err
	}
	if space := h.ours.namespace(r.Header); space != "" || salt != "" {
		of = tenantOf(space, salt)
		h.apart.Store(true)
	}
	if h.apart.Load() {
		r.Header.Del("X-Conversation-Id") // whoever knows it reads the answer
	}
	return of, nil
}

// tenantOf is the tenant of a namespace and a salt. Machines that share pages agree on it.
func tenantOf(space, salt string) llamatier.Tenant {
	first, second := sha256.Sum256([]byte(space)), sha256.Sum256([]byte(salt))
	return sha256.Sum256(slices.Concat([]byte("kvtier tenant"), first[:], second[:]))
}

// namespace returns the namespace of a request's API key, which is read as llama-server reads it; "" without one. A
// key that is not listed has a namespace of its own.
func (o Ours) namespace(header http.Header) string {
	key := strings.Join(header.Values("Authorization"), "\n")
	if key == "" {
		key = strings.Join(header.Values("X-Api-Key"), "\n")
	}
	key = strings.TrimPrefix(key, "Bearer ")
	if o.Tenants == nil || key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	if name, listed := o.Tenants[sum]; listed {
		return "namespace " + name
	}
	return "key " + string(sum[:])
}

// saltOf returns the salt in a body, of several the last, as llama-server reads members; "" without one.
func saltOf(body []byte) (salt string, err error) {
	if !maySalt(body) {
		return "", nil
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if begin, err := dec.Token(); err != nil || begin != json.Delim('{') {
		return "", errSalted
	}
	for dec.More() {
		name, err := dec.Token()
		var value json.RawMessage
		if err != nil || dec.Decode(&value) != nil {
			return "", errSalted
		}
		if name != saltMember {
			continue
		}
		if salt = stringOf(value); salt == "" && set(value, "") {
			return "", errSalt
		}
	}
	if _, err := dec.Token(); err != nil {
		return "", errSalted
	}
	return salt, nil
}

// maySalt reports whether some bytes may have the name of a salt: as it is, or with escapes of letters or of the
// underscore, which few write.
func maySalt(body []byte) bool {
	for _, part := range []string{saltMember, `\u005`, `\u006`, `\u007`} {
		if bytes.Contains(body, []byte(part)) {
			return true
		}
	}
	return false
}

// isObject reports whether a request's body begins as an object of JSON, which llama-server reads whole before it
// does anything. No other body has a salt, and an upload need not wait for its end.
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

// unsalted is a body that is not read before llama-server gets it. It ends with errSalted where it has a
// salt, so that llama-server computes nothing.
type unsalted struct {
	io.ReadCloser
	last  []byte // bytes that may begin the name
	found atomic.Bool
}

func (u *unsalted) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	u.last = append(u.last, p[:n]...)
	if bytes.Contains(u.last, []byte(`"`+saltMember+`"`)) {
		u.found.Store(true)
	}
	if u.found.Load() {
		return 0, errSalted
	}
	u.last = slices.Clone(u.last[max(0, len(u.last)-len(saltMember)-1):])
	return n, err
}

// unsaltedKey is the key, in a request's context, of an unsalted body.
type unsaltedKey struct{}

// apart refuses a request that cannot be kept apart from those of other tenants.
func apart(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, errSalt):
		fails(w, http.StatusBadRequest, `"code":400,"message":"`+err.Error()+`","type":"invalid_request_error"`)
	case errors.Is(err, errSalted):
		fails(w, http.StatusNotImplemented, `"code":501,"message":"kvtier cannot read the cache_salt of this request: send JSON of less than 64 MiB, or no salt","type":"not_supported_error"`)
	default:
		fails(w, http.StatusServiceUnavailable, `"code":503,"message":"requests of other tenants run; try again later","type":"unavailable_error"`)
	}
}

// refuse refuses a tenant's request, because of its salt, or because tenants are not kept apart here.
func (h *Handler) refuse(w http.ResponseWriter, err error) {
	if err != nil {
		apart(w, err)
		return
	}
	why := "no slots are stored for this model, or not yet"
	if h.ours.Shares != "" {
		why = h.ours.Shares
	}
	fails(w, http.StatusNotImplemented, `"code":501,"message":"kvtier does not keep tenants apart here: `+why+`","type":"not_supported_error"`)
}
