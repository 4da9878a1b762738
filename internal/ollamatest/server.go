package ollamatest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/ollama/ollama/api"
)

// Options says which Ollama to start and how. The zero value starts the one
// FindBinary finds, in a temporary folder that Close removes.
type Options struct {
	Binary       string        // path of the ollama executable; FindBinary's if empty
	Args         []string      // more arguments after "ollama serve"
	Env          []string      // KEY=value, over the environment described in the package comment
	Dir          string        // holds HOME and the models, kept by Close; temporary if empty
	ModelsDir    string        // OLLAMA_MODELS, kept by Close; Dir/models if empty
	Stderr       io.Writer     // also gets everything the server and its runners print; may be nil
	StartTimeout time.Duration // how long the server may take to answer; startTimeout if 0
	StopTimeout  time.Duration // how long Stop waits before it kills; stopTimeout if 0
}

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 30 * time.Second
)

// logTailLines is how much of the log an error about a server that did not
// start quotes.
const logTailLines = 20

// Server is an Ollama that this process started. Requests may be made from
// several goroutines at once, also while another one stops or kills the server;
// starting, stopping and killing may not overlap each other.
type Server struct {
	options Options
	tempDir string // removed by Close; empty if the caller gave a Dir
	logs    *logBuffer

	mu      sync.Mutex
	process *process // nil before the first start
	url     *url.URL
	http    *http.Client
}

// Start starts an Ollama and returns when it answers. The context bounds the
// start only.
func Start(ctx context.Context, options Options) (*Server, error) {
	if options.Binary == "" {
		binary, err := FindBinary()
		if err != nil {
			return nil, err
		}
		options.Binary = binary
	}
	// A path is resolved now, so that a later change of folder does not matter.
	binary, err := filepath.Abs(options.Binary)
	if err != nil {
		return nil, fmt.Errorf("finding the absolute path of %s: %w", options.Binary, err)
	}
	options.Binary = binary
	if options.StartTimeout == 0 {
		options.StartTimeout = startTimeout
	}
	if options.StopTimeout == 0 {
		options.StopTimeout = stopTimeout
	}

	s := &Server{options: options, logs: newLogBuffer(options.Stderr)}
	// No proxy, and connections of its own: a client sees the server alone.
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
	if s.options.ModelsDir == "" {
		s.options.ModelsDir = filepath.Join(s.options.Dir, "models")
	}
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

// Restart stops the server if it runs and starts it again, on the same folders
// and on another port. It may follow KillServer.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(); err != nil {
		return err
	}
	// The system chooses the port at the moment the server binds it; choosing
	// one beforehand would race with every other process.
	cmd := exec.Command(s.options.Binary, append([]string{"serve"}, s.options.Args...)...)
	cmd.Env = s.environment("127.0.0.1:0")
	cmd.Dir = s.options.Dir
	mark := s.logs.len()
	p, err := startProcess(cmd, s.logs)
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
			fmt.Errorf("starting %s: %w; end of its log:\n%s", cmd, err, s.logs.tail(logTailLines)),
			s.KillServer())
	}
	return nil
}

// listening is how Ollama logs its address: msg="Listening on 127.0.0.1:1234
// (version 0.16.1)".
const listening = `"Listening on `

func (s *Server) awaitAddress(ctx context.Context, mark int) (string, error) {
	if err := s.WaitLogFrom(ctx, mark, listening); err != nil {
		return "", err
	}
	// The line may have been read in two halves: wait for its end.
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
			return false, fmt.Errorf("it exited: %s", p.status())
		}
		return s.API().Heartbeat(ctx) == nil, nil
	})
}

// environment is this process's environment without variables that would make the
// server depend on the account it runs in.
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

// ModelsDir is the server's OLLAMA_MODELS.
func (s *Server) ModelsDir() string { return s.options.ModelsDir }

// URL is where the server answers, until it is restarted.
func (s *Server) URL() *url.URL {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.url
}

// API is upstream's client for this server, for requests that the methods here do not
// cover. Get a new one after a restart.
func (s *Server) API() *api.Client { return api.NewClient(s.URL(), s.http) }

// Command is the same ollama binary as a client of this server, for instance
// Command(ctx, "run", "small", "hello").
func (s *Server) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.options.Binary, args...)
	cmd.Env = s.environment(s.URL().Host)
	return cmd
}

// Close stops the server, killing it if need be, and removes its temporary
// folder. It may be called again.
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
