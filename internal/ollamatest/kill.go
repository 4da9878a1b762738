package ollamatest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ollama/ollama/api"
)

// killTimeout bounds the wait for killed processes to disappear.
const killTimeout = 10 * time.Second

// PID is the server's process id, or 0 if it does not run.
func (s *Server) PID() int {
	if p := s.running(); p != nil {
		return p.pid()
	}
	return 0
}

// started is the process of the last start, which may have ended since.
func (s *Server) started() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// running is the server's process, or nil if it has ended.
func (s *Server) running() *Process {
	p := s.started()
	if p == nil || p.hasExited() {
		return nil
	}
	return p
}

// Stop asks the server to end, as Ctrl-C does, and waits for the end of the server and its
// runners. A server that takes longer than Options.StopTimeout is killed and reported as an
// error. Stopping a server that does not run does nothing.
func (s *Server) Stop() error {
	p := s.running()
	if p == nil {
		return s.KillServer()
	}
	if err := p.interrupt(); err != nil {
		return errors.Join(fmt.Errorf("stopping the server: %w", err), s.KillServer())
	}
	select {
	case <-p.Exited:
		return s.KillServer() // a runner has outlived the server
	case <-time.After(s.options.StopTimeout):
		return errors.Join(
			fmt.Errorf("the server did not stop within %s and was killed; see its log", s.options.StopTimeout),
			s.KillServer())
	}
}

// KillServer kills the server and its runners at once, without a chance to write, and waits
// until all are gone. Killing a server that does not run kills its remaining runners.
func (s *Server) KillServer() error {
	p := s.started()
	if p == nil || p.gone {
		return nil
	}
	if err := p.kill(); err != nil {
		return fmt.Errorf("killing the server: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	err := poll(ctx, "the killed server and its runners to disappear", func() (bool, error) {
		members, err := family(p.pid())
		return len(members) == 0 && p.hasExited(), err
	})
	if err != nil {
		return err
	}
	select {
	case <-p.Drained:
		// From here on the system may give the id to another process.
		p.gone = true
		return nil
	case <-ctx.Done():
		return errors.New("killing the server: another process still holds its output; was something started from it?")
	}
}

// Runners lists the process ids of the runners that hold a model. Ollama also starts runners
// that look for devices.
func (s *Server) Runners() ([]int, error) {
	p := s.running()
	if p == nil {
		return nil, nil
	}
	members, err := family(p.pid())
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, m := range members {
		if m.pid != p.pid() && m.isModelRunner() {
			pids = append(pids, m.pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// KillRunner kills every runner that holds a model and waits until they are gone. The server
// goes on. Having no such runner is an error.
func (s *Server) KillRunner() error {
	pids, err := s.Runners()
	if err != nil {
		return err
	}
	if len(pids) == 0 {
		return errors.New("killing the runner: no model is loaded; make a request first")
	}
	for _, pid := range pids {
		if err := killPID(pid); err != nil {
			return fmt.Errorf("killing runner %d: %w", pid, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	return poll(ctx, "the killed runners to disappear", func() (bool, error) {
		left, err := s.Runners()
		return !slices.ContainsFunc(left, func(pid int) bool { return slices.Contains(pids, pid) }), err
	})
}

// startedRunner matches the command line of a runner of a model in the server's log.
var startedRunner = regexp.MustCompile(`runner --ollama-engine --model (\S+) --port (\d+)`)

// RunnerURL is the address of the runner that was started last. A runner answers the requests of
// its server, and other processes of the same machine: upstream's type CompletionRequest
// describes them. They have no bound on the number of log probabilities of a token.
func (s *Server) RunnerURL() (*url.URL, error) {
	return s.lastRunner(func(string) bool { return true })
}

// RunnerURLOf is the address of the runner of a model that was started last, where several models are loaded.
func (s *Server) RunnerURLOf(ctx context.Context, model string) (*url.URL, error) {
	shown, err := s.API().Show(ctx, &api.ShowRequest{Model: model})
	if err != nil {
		return nil, fmt.Errorf("find the file of %s: %w", model, err)
	}
	return s.lastRunner(func(file string) bool { return strings.Contains(shown.Modelfile, file) })
}

// lastRunner is the address of the last runner that has a file of weights which is wanted.
func (s *Server) lastRunner(wanted func(file string) bool) (*url.URL, error) {
	started := startedRunner.FindAllStringSubmatch(s.Logs(), -1)
	for _, runner := range slices.Backward(started) {
		if wanted(runner[1]) {
			return &url.URL{Scheme: "http", Host: "127.0.0.1:" + runner[2]}, nil
		}
	}
	return nil, errors.New("the server's log names no runner; is a model loaded?")
}
