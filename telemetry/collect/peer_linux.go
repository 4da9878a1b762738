package collect

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// peerOf returns the user and the process at the other end of a connection, when it was made.
func peerOf(conn syscall.Conn) (p peer) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return p
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p = peer{known: true, uid: int(cred.Uid), pid: int(cred.Pid)}
		}
	})
	return p
}
