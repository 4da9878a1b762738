package proxy

import (
	"bytes"
	"errors"
	"net/http"
)

// errSalt reports a cache_salt that is no text.
var errSalt = errors.New("cache_salt must be a text, and not an empty one")

// salted reports whether a body may have a cache_salt. In a text, quotes have a backslash before them.
func salted(body []byte) bool { return bytes.Contains(body, []byte(`"cache_salt"`)) }

// apart refuses a request that cannot be kept apart from those with another cache_salt.
func apart(w http.ResponseWriter) {
	fails(w, http.StatusNotImplemented, `"code":501,"message":"kvtier keeps requests with a cache_salt apart, and cannot tell which slot this request would use","type":"not_supported_error"`)
}
