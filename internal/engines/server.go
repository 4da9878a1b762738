package engines

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// startIn bounds the start of a server.
const startIn = 30 * time.Second

// Server is a server that a test has started. It ends with the test.
type Server struct {
	Process *os.Process // of the last start
	path    string
	args    []string
	ready   func() error
	ended   chan struct{} // closed when Process has ended
}

// Host is where a server runs, this machine or a network namespace.
type Host struct {
	Address string   // it listens on
	Enter   []string // a command that starts a server there, such as nsenter; none for this process's network
}

func (h Host) start(t testing.TB, path string, args []string, ready func() error) *Server {
	t.Helper()
	command := slices.Concat(h.Enter, []string{path}, args)
	return Start(t, command[0], command[1:], ready)
}

// Find returns the path of a program: that in an environment variable, or the one below build in the repository
// around the working directory. Without one Find skips the test, or fails it where CI=true.
func Find(t testing.TB, variable, below string) string {
	t.Helper()
	if path := os.Getenv(variable); path != "" {
		return path
	}
	dir, err := os.Getwd()
	require.NoError(t, err)
	for last := ""; dir != last; last, dir = dir, filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
			continue
		}
		path := filepath.Join(dir, "build", below)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	const missing = "no build/%s: run make test-servers, or name one in %s"
	if os.Getenv("CI") == "true" {
		t.Fatalf(missing, below, variable)
	}
	t.Skipf(missing, below, variable)
	return ""
}

// Start starts a program and waits until ready returns nil.
func Start(t testing.TB, path string, args []string, ready func() error) *Server {
	t.Helper()
	s := &Server{path: path, args: args, ready: ready}
	t.Cleanup(func() { s.Kill() })
	s.Start(t)
	return s
}

// Start starts the server again after Kill.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "log")
	require.NoError(t, err)
	defer log.Close()
	cmd := exec.Command(s.path, s.args...)
	cmd.Stdout, cmd.Stderr = log, log
	dieWithTest(cmd)
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	s.Process, s.ended = cmd.Process, ended
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	for deadline := time.Now().Add(startIn); ; {
		err := s.ready()
		if err == nil {
			return
		}
		select {
		case <-ended:
		case <-time.After(5 * time.Millisecond):
			if time.Now().Before(deadline) {
				continue
			}
		}
		said, _ := os.ReadFile(log.Name())
		require.NoErrorf(t, err, "start %s: %s", s.path, said)
	}
}

// Kill kills the server, and returns when it has ended.
func (s *Server) Kill() {
	if s.Process != nil {
		_ = s.Process.Kill()
		<-s.ended
	}
}
