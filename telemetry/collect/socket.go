package collect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
)

// socketPathMax is the longest path of a Unix socket, in bytes: macOS allows 103, others 107.
const socketPathMax = 103

// backlogMax bounds the connections that wait for a collector which does not accept them, such as
// one that a shell has stopped: each holds a report in the system's memory.
const backlogMax = 64

// peer is the other end of a connection, as far as the system tells.
type peer struct {
	known    bool
	uid, pid int // pid is 0 where it is not known
}

// trusted reports whether a peer may be the user's own process. Root may read every file.
func (p peer) trusted(uid int) bool { return !p.known || p.uid == uid || p.uid == 0 }

// errForeign reports a directory or a process of another user.
var errForeign = errors.New("it belongs to another user")

// dial connects to the collector of a directory. A reader that is root may read those of
// others.
func dial(ctx context.Context, dir string, reading bool) (net.Conn, error) {
	owner, err := ownerOf(dir, reading)
	if err != nil {
		return nil, err
	}
	var conn net.Conn
	err = withSocket(dir, func(path string) (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "unix", path)
		return err
	})
	if err != nil {
		return nil, err
	}
	if unixConn, ok := conn.(*net.UnixConn); ok && !peerOf(unixConn).trusted(owner) {
		conn.Close()
		return nil, fmt.Errorf("the process that listens in %s: %w", dir, errForeign)
	}
	return conn, nil
}

// listen makes the socket of a directory, which only its owner may connect to. The socket of a
// collector that was killed is gone already.
func listen(dir string) (*net.UnixListener, error) {
	var listener *net.UnixListener
	err := withSocket(dir, func(path string) (err error) {
		if listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}); err != nil {
			return err
		}
		listener.SetUnlinkOnClose(false) // the path may be another's then
		bound(listener)
		if runtime.GOOS == "windows" {
			return nil // there are no modes
		}
		if err = os.Chmod(path, 0o600); err != nil {
			listener.Close()
		}
		return err
	})
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err // the path, through a descriptor, is another one each time
	}
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	return listener, nil
}

// withShortPath calls use with the socket's path. A path that is too long leads through a link
// in a private directory.
func withShortPath(dir string, use func(path string) error) error {
	path := filepath.Join(dir, socketName)
	if len(path) <= socketPathMax {
		return use(path)
	}
	private, err := os.MkdirTemp("", "kvtier-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(private)
	link := filepath.Join(private, "d")
	if err := os.Symlink(dir, link); err != nil {
		return err
	}
	path = filepath.Join(link, socketName)
	if len(path) > socketPathMax {
		return fmt.Errorf("%s is too long for the path of a socket, set TMPDIR to a shorter directory", path)
	}
	return use(path)
}
