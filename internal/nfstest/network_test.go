package nfstest

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	// maxFrame is the largest frame that the hub forwards, in bytes. QEMU sends segments of
	// TCP of up to 64 KiB as one frame.
	maxFrame = 128 << 10

	// queuedFrames is the number of frames that wait for one machine. Further frames are
	// lost, as on a real network.
	queuedFrames = 512
)

// hub is the network between machines: each frame of a machine goes to all others. Each machine
// connects through a Unix socket of its own and sends each frame after its length, four bytes in
// network order.
type hub struct {
	mu    sync.Mutex
	ports map[string]*port
	wg    sync.WaitGroup
}

// port is the connection of one machine.
type port struct {
	listener net.Listener
	frames   chan []byte
	cut      bool // guarded by hub.mu
}

func newHub() *hub { return &hub{ports: make(map[string]*port)} }

// listen waits at a socket for the machine of a name, again after each of its restarts.
func (h *hub) listen(name, path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listen for the network of machine %s: %w", name, err)
	}
	p := &port{listener: l, frames: make(chan []byte, queuedFrames)}
	h.mu.Lock()
	h.ports[name] = p
	h.mu.Unlock()
	h.wg.Add(1)
	go func() {
		defer h.wg.Done()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			h.serve(p, conn)
		}
	}()
	return nil
}

// serve forwards the frames of a connection, until the machine ends.
func (h *hub) serve(p *port, conn net.Conn) {
	ended := make(chan struct{})
	var writer sync.WaitGroup
	writer.Add(1)
	go func() {
		defer writer.Done()
		defer conn.Close()
		for {
			select {
			case frame := <-p.frames:
				if _, err := conn.Write(frame); err != nil {
					return
				}
			case <-ended:
				return
			}
		}
	}()
	h.forward(p, bufio.NewReaderSize(conn, maxFrame))
	close(ended)
	writer.Wait()
}

// forward reads frames from a machine until its connection ends.
func (h *hub) forward(from *port, r io.Reader) {
	var length [4]byte
	for {
		if _, err := io.ReadFull(r, length[:]); err != nil {
			return
		}
		n := binary.BigEndian.Uint32(length[:])
		if n > maxFrame {
			return
		}
		frame := make([]byte, len(length)+int(n))
		copy(frame, length[:])
		if _, err := io.ReadFull(r, frame[len(length):]); err != nil {
			return
		}
		h.send(from, frame)
	}
}

// send gives a frame to all machines except the sender.
func (h *hub) send(from *port, frame []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if from.cut {
		return
	}
	for _, p := range h.ports {
		if p == from || p.cut {
			continue
		}
		select {
		case p.frames <- frame:
		default:
		}
	}
}

// cut cuts a machine off, or connects the machine again. The machine does not notice: its
// frames are lost.
func (h *hub) cut(name string, off bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ports[name].cut = off
}

// close ends the hub after all machines have ended.
func (h *hub) close() {
	h.mu.Lock()
	for _, p := range h.ports {
		p.listener.Close()
	}
	h.mu.Unlock()
	h.wg.Wait()
}

// TestHub: a frame goes to all other machines; a machine that is cut off neither sends nor
// receives, and its connection stays.
func TestHub(t *testing.T) {
	dir, err := os.MkdirTemp("", "hub") // names of sockets are short
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	h := newHub()
	conns := make(map[string]net.Conn)
	for _, name := range []string{"a", "b", "c"} {
		path := filepath.Join(dir, name)
		require.NoError(t, h.listen(name, path))
		conns[name], err = net.Dial("unix", path)
		require.NoError(t, err)
	}
	send := func(from, text string) {
		frame := binary.BigEndian.AppendUint32(nil, uint32(len(text)))
		_, err := conns[from].Write(append(frame, text...))
		require.NoError(t, err)
	}
	receive := func(at string) string {
		var length [4]byte
		_, err := io.ReadFull(conns[at], length[:])
		require.NoError(t, err)
		text := make([]byte, binary.BigEndian.Uint32(length[:]))
		_, err = io.ReadFull(conns[at], text)
		require.NoError(t, err)
		return string(text)
	}
	send("a", "first")
	require.Equal(t, []string{"first", "first"}, []string{receive("b"), receive("c")})
	h.cut("b", true)
	send("a", "without b")
	require.Equal(t, "without b", receive("c"))
	h.cut("b", false)
	send("a", "with b")
	require.Equal(t, []string{"with b", "with b"}, []string{receive("b"), receive("c")})
	for _, conn := range conns {
		conn.Close()
	}
	h.close()
}
