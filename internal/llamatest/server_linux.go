package llamatest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/proc"
)

// DirEnv names the folder that scripts/build-llama-server fills.
const DirEnv = "KVTIER_LLAMA_DIR"

// FindDir returns the folder with bin/ollama and lib/ollama: the one that DirEnv names, or else
// build/llama in a checkout.
func FindDir(checkout string) (string, error) {
	dir, err := filepath.Abs(cmp.Or(os.Getenv(DirEnv), filepath.Join(checkout, "build", "llama")))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, "lib", "ollama", "llama-server-real")); err != nil {
		return "", fmt.Errorf("%w: build it with scripts/build-llama-server, or name its folder in %s", err, DirEnv)
	}
	return dir, nil
}

// Options say how to start a server.
type Options struct {
	Dir   string // of FindDir
	Model string
	Root  string   // of the pages; "" starts the stock server
	Hung  bool     // Start does not wait for the pages: a disk hangs
	Args  []string // more of them
	Env   []string // more variables, KEY=value
	Log   string   // of our daemon, with Root
	Host  string   // the address that it listens on; "" is 127.0.0.1
	Enter []string // a command that starts the server in its own place, such as nsenter
}

// Server is a running llama-server.
type Server struct {
	URL string // without a slash at the end

	cmd     *exec.Cmd
	process *ollamatest.Process
	log     string // of our daemon, for which Start waits; "" for none
	logged  int    // bytes in the log before
	output  *ollamatest.Log
}

// Client takes a new connection for each request: llama-server closes idle ones.
var Client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// readyEvery is the time between two looks at a server that loads its model.
const readyEvery = 5 * time.Millisecond

// Start starts a server, and returns when the server answers prompts and our daemon stores and
// restores pages, or has said that it does not: a busy machine may take longer to open the pages
// than the daemon lets a prompt wait for them.
func Start(ctx context.Context, o Options) (*Server, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	name, host := "llama-server-real", cmp.Or(o.Host, "127.0.0.1")
	s := &Server{URL: fmt.Sprintf("http://%s:%d", host, port), output: ollamatest.NewLog(nil)}
	if o.Root != "" {
		name = "llama-server"
		if !o.Hung {
			before, _ := os.ReadFile(o.Log) // there may be none
			s.log, s.logged = o.Log, len(before)
		}
	}
	command := slices.Concat(o.Enter, []string{
		filepath.Join(o.Dir, "lib", "ollama", name),
		"--model", o.Model, "--port", strconv.Itoa(port), "--host", host, "--no-webui", "--offline",
	}, o.Args)
	s.cmd = exec.Command(command[0], command[1:]...)
	s.cmd.Env = append(os.Environ(), "OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL="+o.Root, "KVTIER_LLAMA_LOG="+o.Log)
	s.cmd.Env = append(s.cmd.Env, o.Env...)
	if s.process, err = ollamatest.StartProcess(s.cmd, s.output); err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		s.Kill()
		return nil, fmt.Errorf("start %s: %w; its output ends:\n%s", name, err, s.Output())
	}
	return s, nil
}

// FreePort returns a port that nobody listens on. Processes with different numbers in KVTIER_TEST_PORTS, which run
// side by side, get different ones.
func FreePort() (int, error) {
	number, anyPort := strconv.Atoi(os.Getenv("KVTIER_TEST_PORTS"))
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, err
		}
		port := l.Addr().(*net.TCPAddr).Port
		if err := l.Close(); err != nil || anyPort != nil || port/2%16 == number%16 {
			return port, err
		}
	}
}

// ready waits until the server answers prompts and our daemon has settled.
func (s *Server) ready(ctx context.Context) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/health", nil)
		if err != nil {
			return err
		}
		if res, err := Client.Do(req); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK && s.settled() {
				return nil
			}
		}
		select {
		case <-s.process.Drained:
			return errors.New("it has ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(readyEvery):
		}
	}
}

// settled reports whether our daemon's log says that pages are stored and restored, or are not.
func (s *Server) settled() bool {
	if s.log == "" {
		return true
	}
	text, _ := os.ReadFile(s.log) // it may not be written yet
	if len(text) >= s.logged {    // a log that is full begins anew
		text = text[s.logged:]
	}
	return bytes.Contains(text, []byte("kv tier: on")) || bytes.Contains(text, []byte("kv tier: off"))
}

// Processes lists the server's processes: the one that Ollama would start, and those below it,
// the real server last.
func (s *Server) Processes() ([]int, error) {
	below, err := proc.Below(s.cmd.Process.Pid)
	return append([]int{s.cmd.Process.Pid}, below...), err
}

// Kill kills the process that Ollama would kill, and waits.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill() // it may have ended
	s.Wait()
}

// Wait waits as Ollama does for the end, until nobody can write to the output any more, and returns how the
// process ended that Ollama would start.
func (s *Server) Wait() syscall.WaitStatus {
	<-s.process.Drained
	<-s.process.Exited
	return s.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

// outputLines bounds the lines of Output.
const outputLines = 50

// Output is the end of the server's output.
func (s *Server) Output() string { return s.output.Tail(outputLines) }

// Memory is the number of bytes of memory that the server's processes take: memory that they map,
// shared pages divided among those that share them, and files in memory that they hold.
func (s *Server) Memory() (int64, error) {
	pids, err := s.Processes()
	if err != nil {
		return 0, err
	}
	var total int64
	files := make(map[uint64]bool)
	for _, pid := range pids {
		rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(rollup)) {
			if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
				kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
				total += kb << 10
			}
		}
		total += memoryFiles(pid, files)
	}
	return total, nil
}

// memoryFiles is the number of bytes of files in memory that a process holds and that were not
// seen before.
func memoryFiles(pid int, seen map[uint64]bool) (total int64) {
	open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range open {
		if name, _ := os.Readlink(fd); !strings.HasPrefix(name, "/memfd:") {
			continue
		}
		if info, err := os.Stat(fd); err == nil {
			stat := info.Sys().(*syscall.Stat_t)
			if !seen[stat.Ino] {
				seen[stat.Ino] = true
				total += stat.Blocks * 512
			}
		}
	}
	return total
}
