package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/telemetry"
)

// childVar makes the test program show the states of a folder, as kvtier top does.
const childVar = "KVTIER_TEST_TOP"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVar); dir != "" {
		os.Exit(child(dir))
	}
	os.Exit(m.Run())
}

// child shows one server, whose state is a file: without the file the server is down.
func child(dir string) int {
	err := Run(context.Background(), os.Stdout, Options{
		Roots: func() []string { return []string{dir} },
		Read: func(_ context.Context, root string) (s telemetry.State, err error) {
			data, err := os.ReadFile(filepath.Join(root, "state"))
			if err != nil {
				return s, err
			}
			return s, json.Unmarshal(data, &s)
		},
		Color: true, every: 10 * time.Millisecond,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// pty is a terminal whose output is kept.
type pty struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	mu     sync.Mutex
	text   strings.Builder
	grown  chan struct{} // holds a value after new output
}

func openPTY(t *testing.T) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	require.NoError(t, control(master, func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0) }))
	n := 0
	require.NoError(t, control(master, func(fd int) (err error) { n, err = unix.IoctlGetInt(fd, unix.TIOCGPTN); return err }))
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	p := &pty{t: t, master: master, slave: slave, grown: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() { defer close(done); p.read() }()
	t.Cleanup(func() {
		_ = slave.Close()
		_ = master.Close()
		<-done
	})
	return p
}

// control calls fn with the descriptor, which stays one of the runtime's poller: its reads end
// when the file is closed.
func control(f *os.File, fn func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	return errors.Join(conn.Control(func(fd uintptr) { failed = fn(int(fd)) }), failed)
}

func (p *pty) read() {
	buf := make([]byte, 4096)
	for {
		n, err := p.master.Read(buf)
		p.mu.Lock()
		p.text.Write(buf[:n])
		p.mu.Unlock()
		select {
		case p.grown <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (p *pty) resize(width, height uint16) {
	p.t.Helper()
	require.NoError(p.t, control(p.master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height})
	}))
}

// terminalLimit bounds the wait for output, which comes within seconds.
const terminalLimit = time.Minute

// until waits for a text in the output since the last call, and returns that output.
func (p *pty) until(text string) string {
	p.t.Helper()
	timeout := time.After(terminalLimit)
	for {
		p.mu.Lock()
		got := p.text.String()
		if strings.Contains(got, text) {
			p.text.Reset()
			p.mu.Unlock()
			return got
		}
		p.mu.Unlock()
		select {
		case <-p.grown:
		case <-timeout:
			p.t.Fatalf("the terminal never showed %q, but %q", text, got)
		}
	}
}

func (p *pty) send(keys string) {
	p.t.Helper()
	_, err := io.WriteString(p.master, keys)
	require.NoError(p.t, err)
}

func (p *pty) settings() (s unix.Termios) {
	p.t.Helper()
	require.NoError(p.t, control(p.slave, func(fd int) error {
		got, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil {
			s = *got
		}
		return err
	}))
	return s
}

func putState(t *testing.T, dir string, s telemetry.State) {
	t.Helper()
	data, err := json.Marshal(s)
	require.NoError(t, err)
	temp := filepath.Join(dir, "temp")
	require.NoError(t, os.WriteFile(temp, data, 0o600))
	require.NoError(t, os.Rename(temp, filepath.Join(dir, "state")))
}

// On a terminal: a server that comes, restarts, and goes on; other sizes; and an end after
// which the terminal is as before.
func TestTerminal(t *testing.T) {
	for name, quit := range map[string]string{"q": "q", "Ctrl-C": "\x03"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := openPTY(t)
			p.resize(80, 24)
			before := p.settings()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "CI=") }), childVar+"="+dir, "TERM=xterm-256color")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = p.slave, p.slave, p.slave
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
			require.NoError(t, cmd.Start())
			ended := false
			defer func() {
				if !ended {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
				}
			}()

			first := p.until("No server has told its numbers here yet.")
			require.Contains(t, first, "\x1b[?1049h")
			require.NotContains(t, first, "\x1b]11", "the terminal was asked for its color; see package quiet")
			s := sampleState()
			s.At = time.Now()
			putState(t, dir, s)
			p.until("(estimate)")
			require.NoError(t, os.Remove(filepath.Join(dir, "state")))
			p.until("waiting for the server")
			s.At = time.Now()
			putState(t, dir, s)
			p.until("live")
			p.resize(40, 12)
			p.until("reused ")
			p.resize(120, 40)
			p.until("prompts restored")

			require.NotEqual(t, before, p.settings())
			p.send(quit)
			require.Contains(t, p.until("\x1b[?1049l"), "\x1b[?25h", "the cursor is shown again")
			require.NoError(t, cmd.Wait())
			ended = true
			require.Equal(t, before, p.settings())
		})
	}
}
