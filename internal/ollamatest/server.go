package ollamatest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ollama/ollama/api"
)

// Options of Start. The zero value starts the executable that FindBinary finds, in a
// temporary folder that Close removes.
type Options struct {
	Binary       string        // path of the ollama executable; FindBinary's if empty
	Env          []string      // KEY=value, over the environment described in the package comment
	Dir          string        // holds HOME and the models, kept by Close; temporary if empty
	ModelsDir    string        // OLLAMA_MODELS, kept by Close; Dir/models if empty
	Stderr       io.Writer     // also gets all output of the server and its runners; may be nil
	StartTimeout time.Duration // limit of the time until the server answers; startTimeout if 0
	StopTimeout  time.Duration // time that Stop waits before it kills; stopTimeout if 0
}

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 30 * time.Second
)

// logTailLines is the number of log lines in the error of a failed start.
const logTailLines = 20

// Server is an Ollama that this process started. Requests may be made from several
// goroutines at once, also while another goroutine stops or kills the server. Starting,
// stopping and killing may not overlap each other.
type Server struct {
	options Options
	tempDir string // removed by Close; empty if the caller gave a Dir
	logs    *Log

	mu      sync.Mutex
	process *Process // nil before the first start
	url     *url.URL
	http    *http.Client
}

// Start starts an Ollama and waits until it answers. The context bounds the start only.
func Start(ctx context.Context, options Options) (*Server, error) {
	if options.Binary == "" {
		binary, err := FindBinary()
		if err != nil {
			return nil, err
		}
		options.Binary = binary
	}
	// The path is resolved now, so that a later change of the working directory does not matter.
	binary, err := filepath.Abs(options.Binary)
	if err != nil {
		return nil, fmt.Errorf("finding the absolute path of %s: %w", options.Binary, err)
	}
	options.Binary = binary
	options.StartTimeout = cmp.Or(options.StartTimeout, startTimeout)
	options.StopTimeout = cmp.Or(options.StopTimeout, stopTimeout)

	s := &Server{options: options, logs: NewLog(options.Stderr)}
	// No proxy, and separate connections: the client reaches this server only.
	s.http = &http.Client{Transport: &http.Transport{}}
	if err := s.makeDirs(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.Restart(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) makeDirs() error {
	if s.options.Dir == "" {
		dir, err := os.MkdirTemp("", "ollamatest-*")
		if err != nil {
			return fmt.Errorf("creating a folder for an Ollama server: %w", err)
		}
		s.options.Dir, s.tempDir = dir, dir
	}
	s.options.ModelsDir = cmp.Or(s.options.ModelsDir, filepath.Join(s.options.Dir, "models"))
	for _, dir := range []*string{&s.options.Dir, &s.options.ModelsDir} {
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return fmt.Errorf("finding the absolute path of %s: %w", *dir, err)
		}
		*dir = abs
	}
	for _, dir := range []string{s.Home(), s.options.ModelsDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("creating a folder for an Ollama server: %w", err)
		}
	}
	return nil
}

// Restart stops a running server and starts it again, with the same folders and another
// port. Restart may follow KillServer.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(); err != nil {
		return err
	}
	// The system chooses the port when the server binds it; a port chosen beforehand could
	// be taken by another process.
	cmd := exec.Command(s.options.Binary, "serve")
	cmd.Env = s.environment("127.0.0.1:0")
	cmd.Dir = s.options.Dir
	mark := s.LogMark()
	p, err := StartProcess(cmd, s.logs)
	if err != nil {
		return fmt.Errorf("starting %s: %w", cmd, err)
	}
	s.mu.Lock()
	s.process, s.url = p, nil
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, s.options.StartTimeout)
	defer cancel()
	address, err := s.awaitAddress(ctx, mark)
	if err == nil {
		err = s.awaitAnswer(ctx, address)
	}
	if err != nil {
		return errors.Join(
			fmt.Errorf("starting %s: %w; end of its log:\n%s", cmd, err, s.logs.Tail(logTailLines)),
			s.KillServer())
	}
	return nil
}

// listening begins Ollama's log line with its address: msg="Listening on 127.0.0.1:1234 (version 0.16.1)".
const listening = `"Listening on `

func (s *Server) awaitAddress(ctx context.Context, mark int) (string, error) {
	if err := s.WaitLogFrom(ctx, mark, listening); err != nil {
		return "", err
	}
	// Wait for the end of the line, which may come in two writes.
	if err := s.WaitLogFrom(ctx, mark+strings.Index(s.logs.from(mark), listening), "\n"); err != nil {
		return "", err
	}
	_, after, _ := strings.Cut(s.logs.from(mark), listening)
	address, _, found := strings.Cut(after, " ")
	if !found {
		return "", fmt.Errorf("no address after %q in its log", listening)
	}
	return address, nil
}

func (s *Server) awaitAnswer(ctx context.Context, address string) error {
	s.mu.Lock()
	s.url = &url.URL{Scheme: "http", Host: address}
	p := s.process
	s.mu.Unlock()
	return poll(ctx, "the server to answer", func() (bool, error) {
		if p.hasExited() {
			return false, fmt.Errorf("it Exited: %s", p.status())
		}
		return s.API().Heartbeat(ctx) == nil, nil
	})
}

// environment is this process's environment without variables that would make the server
// depend on the user's account.
func (s *Server) environment(host string) []string {
	var env []string
	for _, entry := range os.Environ() {
		key, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(key, "OLLAMA_") && key != "HOME" && key != "USERPROFILE" {
			env = append(env, entry)
		}
	}
	env = append(env,
		"HOME="+s.Home(), "USERPROFILE="+s.Home(),
		"OLLAMA_MODELS="+s.options.ModelsDir, "OLLAMA_HOST="+host)
	return append(env, s.options.Env...)
}

// Home is the server's HOME.
func (s *Server) Home() string { return filepath.Join(s.options.Dir, "home") }

// URL is the server's address until the next restart.
func (s *Server) URL() *url.URL {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.url
}

// API is upstream's client for this server, for requests without a method here. A restart
// makes the client invalid.
func (s *Server) API() *api.Client { return api.NewClient(s.URL(), s.http) }

// Command runs the ollama binary as a client of this server, for example Command(ctx, "run",
// "small", "hello").
func (s *Server) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.options.Binary, args...)
	cmd.Env = s.environment(s.URL().Host)
	return cmd
}

// Close stops or kills the server, and removes its temporary folder. Close may be called again.
func (s *Server) Close() error {
	err := s.Stop()
	s.http.CloseIdleConnections()
	if s.tempDir != "" {
		if removeErr := os.RemoveAll(s.tempDir); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("removing the server's folder: %w", removeErr))
		}
	}
	return err
}

// BinaryEnv names the ollama executable to use instead of the repository's own build.
const BinaryEnv = "KVTIER_OLLAMA"

// ErrNoBinary means that there is no Ollama to start.
var ErrNoBinary = errors.New("no Ollama to start: run `make build`, or set " + BinaryEnv + " to an ollama executable")

// FindBinary returns the executable that $KVTIER_OLLAMA names or, without that variable,
// build/ollama/bin/ollama in the repository around the working directory. Outside the repository
// FindBinary returns the ollama beside this program. The error is ErrNoBinary if none exists.
func FindBinary() (string, error) {
	if path := os.Getenv(BinaryEnv); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("using the Ollama that %s names: %w", BinaryEnv, err)
		}
		return path, nil
	}
	dir, err := builtDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "ollama")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	if _, err := os.Stat(path); err != nil {
		return "", ErrNoBinary
	}
	return path, nil
}

// builtDir is the folder of programs in the nearest folder, from the working directory up, with this module's
// go.mod. Without one it is the folder of this program: make build puts kvtier beside its ollama.
func builtDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the working directory: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		gomod, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil && strings.HasPrefix(string(gomod), "module github.com/kvtier/kvtier\n") {
			return filepath.Join(at, "build", "ollama", "bin"), nil
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	return filepath.Dir(program), nil
}

// failedLogLines is the number of lines of the server's log that a failed test prints.
const failedLogLines = 200

// ForTest starts a server for the length of a test. ForTest skips the test if there is no
// Ollama to start, and prints the end of the server's log if the test failed.
func ForTest(t testing.TB, options Options) *Server {
	t.Helper()
	s, err := Start(context.Background(), options)
	if errors.Is(err, ErrNoBinary) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("closing the Ollama server: %v", err)
		}
		if t.Failed() {
			t.Logf("end of the Ollama server's log:\n%s", s.logs.Tail(failedLogLines))
		}
	})
	return s
}
