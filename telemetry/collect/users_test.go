//go:build unix

package collect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var errNoSpace error = unix.ENOSPC

const nobody = 65534

// stranger is another user that tries everything, and prints how far it came.
func stranger(root string) {
	dir := filepath.Join(root, directoryName)
	if _, err := Read(context.Background(), root); err == nil {
		fmt.Println("it read the state")
	}
	if _, err := ReadWords(context.Background(), root, ""); err == nil {
		fmt.Println("it read words")
	}
	if data, err := os.ReadFile(filepath.Join(dir, fileName)); err == nil {
		fmt.Println("it read the file", len(data))
	}
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err == nil {
		fmt.Println("it wrote a file")
	}
	err := withSocket(dir, func(path string) error {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("GET /v1/state HTTP/1.1\r\nHost: x\r\n\r\n"))
		if n, err := conn.Read(make([]byte, 1)); n > 0 {
			fmt.Println("it was answered", err)
		} else {
			fmt.Println("it was refused")
		}
		return nil
	})
	if errors.Is(err, os.ErrPermission) {
		fmt.Println("it could not connect")
	}
	if err := Serve(context.Background(), root, Options{Intervals: quick}); err == nil {
		fmt.Println("it could serve")
	}
}

// asNobody runs a child as another user.
func asNobody(t *testing.T, role, root string) string {
	// The test's own executable is in a directory that only its user may enter.
	own, err := os.MkdirTemp("", "kvtier-stranger-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(own) })
	require.NoError(t, os.Chmod(own, 0o755))
	program := filepath.Join(own, "stranger")
	data, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, data, 0o755))
	cmd := exec.Command(program)
	cmd.Dir = "/"
	cmd.Env = []string{roleEnv + "=" + role, rootEnv + "=" + root}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// TestAnotherUserReadsNothing: not through the directories, and where their modes were changed,
// not from the socket.
func TestAnotherUserReadsNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run a process as another user")
	}
	above, err := os.MkdirTemp("", "kvtier-users-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(above) })
	require.NoError(t, os.Chmod(above, 0o755))
	root := filepath.Join(above, "local")
	require.NoError(t, os.Mkdir(root, 0o700))
	collector(t, root)
	require.True(t, readState(t, root).Live)
	require.Equal(t, "it could not connect\n", asNobody(t, roleStranger, root))

	for path, mode := range map[string]os.FileMode{root: 0o755, filepath.Join(root, directoryName): 0o755, newPath(root, socketName): 0o666} {
		require.NoError(t, os.Chmod(path, mode))
	}
	require.Equal(t, "it was refused\n", asNobody(t, roleStranger, root), "the collector looks at the user")
	require.True(t, readState(t, root).Live)
}

// TestRootReadsForOthers: a reader that is root may read the state of a service's user, and
// does not push to it or serve it.
func TestRootReadsForOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory to another user")
	}
	root := newRoot(t)
	c := collector(t, root)
	post(t, client(t, root), reportPath, encoded(t, testReport(1, prompts(1))))
	require.NoError(t, c.stop())
	for _, path := range []string{root, filepath.Join(root, directoryName), newPath(root, fileName)} {
		require.NoError(t, os.Chown(path, nobody, nobody))
	}
	require.Equal(t, 1.0, total(readState(t, root), promptsTotal))
	_, err := dial(t.Context(), filepath.Join(root, directoryName), false)
	require.ErrorIs(t, err, errForeign)
	require.Error(t, Serve(t.Context(), root, Options{Intervals: quick}))
}

func TestWhoIsTrusted(t *testing.T) {
	for _, c := range []struct {
		peer peer
		want bool
	}{
		{peer{known: true, uid: 1000}, true}, {peer{known: true, uid: 0}, true}, {peer{known: true, uid: 1001}, false},
		{peer{known: true, uid: 65534}, false}, {peer{}, true},
	} {
		require.Equal(t, c.want, c.peer.trusted(1000))
	}
	l, err := listen(newRoot(t))
	require.NoError(t, err)
	defer l.Close()
}
