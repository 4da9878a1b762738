package proxy

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Ours are the options that the engine has for our sake alone, and those of clients that we must know.
type Ours struct {
	SavePath, Metrics, Slots bool

	Keys bool // the engine asks clients for a key
	// Tenants are namespaces, by the SHA-256 of API keys. Nil separates no keys.
	Tenants map[[sha256.Size]byte]string
	// Shares is what requests of all tenants share in spite of us, or "".
	Shares string

	Pings time.Duration // between two comments that keep a stream alive, unless a request names it; at most 0 for none
}

// refuse returns the reason for which a llama-server without our options refuses a request, or "". Where there are
// tenants, slots are refused in any case.
func (o Ours) refuse(r *http.Request, tenants bool) string {
	get := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case (o.SavePath || tenants) && r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/slots/"):
		return "This server does not support slots action. Start it with `--slot-save-path`"
	case o.Metrics && get && r.URL.Path == "/metrics":
		return "This server does not support metrics endpoint. Start it with `--metrics`"
	case (o.Slots || tenants) && get && r.URL.Path == "/slots":
		return "This server does not support slots endpoint. Start it with `--slots`"
	}
	return ""
}

// propsMax bounds a list of properties in which options are hidden, in bytes. Most of it is the
// template of chats.
const propsMax = 4 << 20

// hide takes our options out of an engine's list of its properties.
func (o Ours) hide(res *http.Response, tenants bool) error {
	o.Slots = o.Slots || tenants
	if !o.Metrics && !o.Slots || res.Request.Method != http.MethodGet || res.Request.URL.Path != "/props" {
		return nil
	}
	return change(res, propsMax, func(body []byte) []byte {
		for name, ours := range map[string]bool{"endpoint_metrics": o.Metrics, "endpoint_slots": o.Slots} {
			if ours { // in a text, quotes have a backslash before them
				body = bytes.Replace(body, []byte(`"`+name+`":true`), []byte(`"`+name+`":false`), 1)
			}
		}
		return body
	})
}

// change changes an answer of at most limit bytes.
func change(res *http.Response, limit int64, to func([]byte) []byte) error {
	body, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return err
	}
	if int64(len(body)) > limit {
		res.Body = joined{io.MultiReader(bytes.NewReader(body), res.Body), res.Body}
		return nil
	}
	res.Body.Close()
	body = to(body)
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	res.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return nil
}
