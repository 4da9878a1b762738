package nfstest

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

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
