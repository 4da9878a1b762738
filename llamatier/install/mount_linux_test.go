package install

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mountsVariable makes this test program a service: it names a drop-in whose files are mounted.
const mountsVariable = "KVTIER_TEST_MOUNTS"

func TestMain(m *testing.M) {
	if path := os.Getenv(mountsVariable); path != "" {
		if err := serveMounted(path, os.Getenv("KVTIER_TEST_ORDER") == "reversed"); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serveMounted mounts files as systemd does, and prints those that it is asked for.
func serveMounted(dropIn string, reversed bool) error {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep mounts to this namespace: %w", err)
	}
	text, err := os.ReadFile(dropIn)
	if err != nil {
		return err
	}
	var binds []string
	for _, line := range strings.Split(string(text), "\n") {
		if bind, ok := strings.CutPrefix(line, "BindReadOnlyPaths="); ok {
			binds = append(binds, bind)
		}
	}
	if reversed {
		slices.Reverse(binds)
	}
	for _, bind := range binds {
		if err := bindAs(bind); err != nil {
			return fmt.Errorf("%s: %w", bind, err)
		}
	}
	fmt.Println("mounted")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		text, err := os.ReadFile(lines.Text())
		if err != nil {
			text = []byte("none")
		}
		fmt.Println(strings.TrimSpace(string(text)))
	}
	return nil
}

// bindAs is one mount of BindReadOnlyPaths, as in systemd's src/core/namespace.c.
func bindAs(bind string) error {
	parts := strings.Split(strings.TrimPrefix(bind, "-"), ":")
	flags := uintptr(unix.MS_BIND | unix.MS_REC)
	if len(parts) > 2 && parts[2] == "norbind" {
		flags = unix.MS_BIND
	}
	info, err := os.Stat(parts[0])
	switch {
	case errors.Is(err, os.ErrNotExist) && strings.HasPrefix(bind, "-"):
		return nil
	case err != nil:
		return err
	}
	if _, err := os.Lstat(parts[1]); err != nil {
		if err := os.MkdirAll(filepath.Dir(parts[1]), 0o755); err != nil {
			return err
		}
		if info.IsDir() {
			err = os.Mkdir(parts[1], 0o755)
		} else {
			err = os.WriteFile(parts[1], nil, 0o644)
		}
		if err != nil {
			return err
		}
	}
	if err := unix.Mount(parts[0], parts[1], "", flags, ""); err != nil {
		return err
	}
	err = unix.Mount("", parts[1], "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	if errors.Is(err, unix.EPERM) {
		return nil // in a user namespace, other flags of the mount are locked
	}
	return err
}

// mounted is a process that sees the mounts of a drop-in.
type mounted struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Scanner
}

func startMounted(t *testing.T, dropIn, order string) mounted {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), mountsVariable+"="+dropIn, "KVTIER_TEST_ORDER="+order)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); errors.Is(err, os.ErrPermission) && os.Geteuid() != 0 {
		t.Skip("this user may not make mount namespaces: ", err)
	} else {
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		in.Close()
		require.NoError(t, cmd.Wait())
	})
	m := mounted{t, in, bufio.NewScanner(out)}
	require.True(t, m.out.Scan())
	require.Equal(t, "mounted", m.out.Text())
	return m
}

// sees is the first line of a file that the process sees.
func (m mounted) sees(path string) string {
	m.t.Helper()
	_, err := fmt.Fprintln(m.in, path)
	require.NoError(m.t, err)
	require.True(m.t, m.out.Scan())
	return m.out.Text()
}

// TestMounts: in either order of its mounts, the drop-in shows a service ours in the place of
// llama-server, and the real one beside its libraries. Nobody else sees a change, and
// Ollama's updater may remove the folder.
func TestMounts(t *testing.T) {
	for _, order := range []string{"as written", "reversed"} {
		t.Run(order, func(t *testing.T) {
			w := newService(t)
			require.NoError(t, w.install(Options{}))
			server, real := w.at(lib+"llama-server"), w.at("usr/local/lib/kvtier/ollama/llama-server")
			before := w.tree()
			m := startMounted(t, w.at(dropInFile), order)
			require.Equal(t, strings.TrimSpace(ourServer), m.sees(server))
			require.Equal(t, strings.TrimSpace(stockServer), m.sees(real))
			require.Equal(t, "library", m.sees(filepath.Join(filepath.Dir(real), "libggml-base.so")))
			require.Equal(t, before, w.tree())

			require.NoError(t, os.RemoveAll(w.at(lib)))
			require.Equal(t, "none", m.sees(server))
			w.tarball("usr/local", nextServer)
			m = startMounted(t, w.at(dropInFile), order) // as the updater restarts the service
			require.Equal(t, strings.TrimSpace(ourServer), m.sees(server))
			require.Equal(t, strings.TrimSpace(nextServer), m.sees(real))

			// Without our file Ollama runs its own.
			require.NoError(t, os.Remove(w.at("usr/local/lib/kvtier/llama-server")))
			m = startMounted(t, w.at(dropInFile), order)
			require.Equal(t, strings.TrimSpace(nextServer), m.sees(server))
		})
	}
}
