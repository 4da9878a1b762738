package listen

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/expose"
)

const (
	// atOnce is the number of requests that are answered at the same time; a state may have some
	// MB. Others are told to come again.
	atOnce = 8
	// readTimeout bounds the wait for a state. Prometheus waits for 10 s.
	readTimeout = 5 * time.Second
	// writeTimeout bounds the time of writing an answer, which holds one of atOnce. Ollama's own
	// port has no such bound, so a few clients that never read would keep all others away.
	writeTimeout = 10 * time.Second
)

// Read returns the state of a root.
type Read = func(context.Context) (telemetry.State, error)

// Metrics answers GET and HEAD with all metrics of the state that read returns. version is that
// of the program.
func Metrics(version string, read Read) http.Handler {
	return guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
		defer cancel()
		state, err := read(ctx)
		if errors.Is(err, fs.ErrNotExist) {
			state, err = telemetry.State{}, nil // nothing is collected yet: the server is there, and says so
		}
		if err != nil {
			// The error names paths; the log of the server has it, and a stranger need not.
			http.Error(w, "The state of the KV tier could not be read. kvtier stat says more.", http.StatusServiceUnavailable)
			return
		}
		text := expose.Options{Version: version}.Text(state)
		w.Header().Set("Content-Type", expose.ContentType)
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		write(w, text)
	}))
}

// write writes an answer in bounded time. The connection may serve other requests afterwards, so
// it does not keep the bound. A client that left reads no error.
func write(w http.ResponseWriter, text []byte) {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) // a writer of a test has none
	if _, err := w.Write(text); err == nil && control.Flush() == nil {
		_ = control.SetWriteDeadline(time.Time{})
	}
}

// guard lets through few requests at a time, that only read, for a host that is this one.
// It sets the headers of all answers; h may replace them.
func guard(h http.Handler) http.Handler {
	places := make(chan struct{}, atOnce)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Cache-Control", "no-store")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			header.Set("Allow", "GET, HEAD")
			http.Error(w, "Only GET and HEAD are answered here.", http.StatusMethodNotAllowed)
			return
		case !allowedHost(r):
			http.Error(w, "This host name is not answered on a loopback address. Ask for localhost or the address.", http.StatusForbidden)
			return
		}
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			h.ServeHTTP(w, r)
		default:
			header.Set("Retry-After", "1")
			http.Error(w, "Too many requests at the same time.", http.StatusServiceUnavailable)
		}
	})
}

// localNames are endings of names that no public server of names knows, as Ollama has them.
var localNames = []string{".localhost", ".local", ".internal"}

// allowedHost reports whether a request may be answered under the name that it asks for. A
// web page that has made its own name resolve to 127.0.0.1 would read answers as if they were
// its own; its requests have that name as Host. A number cannot be such a name.
//
// Ollama asks the same on its own port, behind the mux that /metrics is on. Where the connection did not come
// by a loopback address, the owner has opened the port to others under names that only the owner knows.
func allowedHost(r *http.Request) bool {
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		if at, err := netip.ParseAddrPort(local.String()); err == nil && !at.Addr().Unmap().IsLoopback() {
			return true
		}
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || host == "" || host == "localhost" {
		return true
	}
	if slices.ContainsFunc(localNames, func(ending string) bool { return strings.HasSuffix(host, ending) }) {
		return true
	}
	own, err := os.Hostname()
	return err == nil && host == strings.ToLower(own)
}
