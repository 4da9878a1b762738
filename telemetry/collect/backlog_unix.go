//go:build unix

package collect

import (
	"net"

	"golang.org/x/sys/unix"
)

// bound bounds the connections that wait to be accepted. Package net asks for as many as the
// system allows.
func bound(listener *net.UnixListener) {
	raw, err := listener.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.Listen(int(fd), backlogMax) })
}
