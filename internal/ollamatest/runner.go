package ollamatest

import (
	"errors"
	"net/url"
	"regexp"
)

// startedRunner matches the command line of a runner of a model in the server's log.
var startedRunner = regexp.MustCompile(`runner --ollama-engine --model \S+ --port (\d+)`)

// RunnerURL is the address of the runner that was started last. A runner answers the requests of
// its server, and other processes of the same machine: upstream's type CompletionRequest
// describes them. They have no bound on the number of log probabilities of a token.
func (s *Server) RunnerURL() (*url.URL, error) {
	started := startedRunner.FindAllStringSubmatch(s.Logs(), -1)
	if len(started) == 0 {
		return nil, errors.New("the server's log names no runner; is a model loaded?")
	}
	return &url.URL{Scheme: "http", Host: "127.0.0.1:" + started[len(started)-1][1]}, nil
}
