package proxy

import (
	"crypto/sha256"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/llamatier"
)

// A request's tenant follows from its API key and from the member cache_salt of its body. Nothing of both is logged.

const saltMember = "cache_salt"

var errSalt = errors.New("cache_salt must be a text, and not an empty one")

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

// saltOf returns the salt in a body; "" without one.
func saltOf(body []byte) (salt string, err error) {
	value, _, err := memberOf(body, saltMember)
	if salt = stringOf(value); err == nil && salt == "" && set(value, "") {
		err = errSalt
	}
	return salt, err
}

// apart refuses a request that cannot be kept apart from those of other tenants, or whose body cannot be read.
func apart(w http.ResponseWriter, err error) {
	var member unreadable
	switch {
	case errors.Is(err, errSalt):
		fails(w, http.StatusBadRequest, `"code":400,"message":"`+err.Error()+`","type":"invalid_request_error"`)
	case errors.As(err, &member):
		fails(w, http.StatusNotImplemented, `"code":501,"message":"kvtier cannot read the `+string(member)+` of this request: send JSON of less than 64 MiB, or leave it out","type":"not_supported_error"`)
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
