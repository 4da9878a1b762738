package listen

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// bounded has a new connection over connectionsMax close another one: that of which no request is being
// answered, for the longest time; itself, where all others are busy. So no user of this machine keeps all
// others away.
type bounded struct {
	mu      sync.Mutex
	open    int
	resting []net.Conn // of which no request is being answered, the longest first
}

// state is http.Server.ConnState.
func (b *bounded) state(conn net.Conn, state http.ConnState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resting = slices.DeleteFunc(b.resting, func(c net.Conn) bool { return c == conn })
	switch state {
	case http.StateNew:
		b.open++
		b.resting = append(b.resting, conn)
		if b.open > connectionsMax {
			b.resting[0].Close()
			b.resting = slices.Delete(b.resting, 0, 1)
		}
	case http.StateIdle:
		b.resting = append(b.resting, conn)
	case http.StateClosed:
		b.open--
	}
}
