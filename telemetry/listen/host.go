package listen

import (
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// localNames are endings of names that no public server of names knows, as Ollama has them.
var localNames = []string{".localhost", ".local", ".internal"}

// allowedHost reports whether a request may be answered under the name that it asks for. A
// web page that has made its own name resolve to 127.0.0.1 would read answers as if they were
// its own; its requests have that name as Host. A number cannot be such a name.
//
// Ollama asks the same on its own port, behind the mux that /metrics is on. Where the connection
// did not come by a loopback address, the owner has opened the port to others under names that
// only the owner knows.
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
