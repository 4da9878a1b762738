package listen

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// bounded is a listener that has at most max connections open, and one that waits. A connection of
// which no request is being answered gives way to a new one, the one that has rested longest first:
// else any user of this machine could keep all others away.
type bounded struct {
	net.Listener
	max int

	mu      sync.Mutex
	changed sync.Cond // with mu: a connection rests or ends, or the listener is closed
	open    int
	resting []*counted // the longest first
	closed  bool
}

func newBounded(inner net.Listener, max int) *bounded {
	b := &bounded{Listener: inner, max: max}
	b.changed.L = &b.mu
	return b
}

func (b *bounded) Accept() (net.Conn, error) {
	conn, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.open == b.max && len(b.resting) == 0 && !b.closed {
		b.changed.Wait()
	}
	if b.closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	if b.open == b.max {
		longest := b.resting[0]
		b.leave(longest)
		longest.Conn.Close()
	}
	c := &counted{Conn: conn, in: b}
	b.open++
	b.resting = append(b.resting, c)
	return c, nil
}

// state is http.Server.ConnState.
func (b *bounded) state(conn net.Conn, state http.ConnState) {
	c, ok := conn.(*counted)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.Index(b.resting, c)
	switch {
	case state == http.StateActive && at >= 0:
		b.resting = slices.Delete(b.resting, at, at+1)
	case state == http.StateIdle && at < 0 && !c.left:
		b.resting = append(b.resting, c)
		b.changed.Signal()
	}
}

// leave frees the place of a connection, once. b.mu is held.
func (b *bounded) leave(c *counted) {
	if c.left {
		return
	}
	c.left = true
	if at := slices.Index(b.resting, c); at >= 0 {
		b.resting = slices.Delete(b.resting, at, at+1)
	}
	b.open--
	b.changed.Signal()
}

func (b *bounded) Close() error {
	b.mu.Lock()
	b.closed = true
	b.changed.Signal()
	b.mu.Unlock()
	return b.Listener.Close()
}

// counted is a connection that has a place.
type counted struct {
	net.Conn
	in   *bounded
	left bool // protected by in.mu
}

func (c *counted) Close() error {
	c.in.mu.Lock()
	c.in.leave(c)
	c.in.mu.Unlock()
	return c.Conn.Close()
}
