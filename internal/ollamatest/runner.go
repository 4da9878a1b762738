package ollamatest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/ollama/ollama/api"
)

// startedRunner matches the command line of a runner of a model in the server's log.
var startedRunner = regexp.MustCompile(`runner --ollama-engine --model (\S+) --port (\d+)`)

// RunnerURL is the address of the runner that was started last. A runner answers the requests of
// its server, and other processes of the same machine: upstream's type CompletionRequest
// describes them. They have no bound on the number of log probabilities of a token.
func (s *Server) RunnerURL() (*url.URL, error) {
	return s.lastRunner(func(string) bool { return true })
}

// RunnerURLOf is the address of the runner of a model that was started last, where several models
// are loaded.
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
