package ollamatest

import (
	"context"
	"errors"
	"testing"
)

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
