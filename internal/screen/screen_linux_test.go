package screen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// childVar makes the test program show the text of a file, again and again.
const childVar = "KVTIER_TEST_SCREEN"

func TestMain(m *testing.M) {
	if file := os.Getenv(childVar); file != "" {
		os.Exit(child(file))
	}
	os.Exit(m.Run())
}

func child(file string) int {
	err := Run(context.Background(), os.Stdin, os.Stdout, 10*time.Millisecond, func(context.Context) string {
		text, err := os.ReadFile(file)
		if err != nil {
			return err.Error()
		}
		return string(text)
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

// put replaces a file at once.
func put(t *testing.T, file, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(file+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(file+".new", file))
}

// On a terminal: text that changes, other sizes, and an end after which the terminal is as before.
func TestTerminal(t *testing.T) {
	for name, quit := range map[string]string{"q": "q", "Ctrl-C": "\x03"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "text")
			put(t, file, "one\ntwo\nthree\n")
			p := openPTY(t)
			p.resize(80, 24)
			before := p.settings()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childVar+"="+file)
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

			require.Contains(t, p.until(drawn("one\ntwo\nthree", 24)), enter)
			put(t, file, "four\nfive\nsix")
			p.until(drawn("four\nfive\nsix", 24))
			p.resize(40, 2)
			p.until("\x1b[Kfive\x1b[H")
			p.resize(120, 40)
			p.until(drawn("four\nfive\nsix", 40))

			require.NotEqual(t, before, p.settings())
			p.send("x" + quit)
			p.until(leave)
			require.NoError(t, cmd.Wait())
			ended = true
			require.Equal(t, before, p.settings())
		})
	}
}
