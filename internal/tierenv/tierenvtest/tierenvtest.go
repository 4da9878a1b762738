// Package tierenvtest helps tests of settings from the environment.
package tierenvtest

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"
)

// Set sets the tiering variables to exactly vars until the test ends.
func Set(t *testing.T, vars map[string]string) {
	t.Helper()
	for _, line := range os.Environ() {
		if name, _, _ := strings.Cut(line, "="); strings.HasPrefix(name, "OLLAMA_KV_") {
			t.Setenv(name, "")
		}
	}
	for name, value := range vars {
		t.Setenv(name, value)
	}
}

// Logger returns a logger and the buffer of its lines.
func Logger() (*slog.Logger, *bytes.Buffer) {
	var lines bytes.Buffer
	return slog.New(slog.NewTextHandler(&lines, nil)), &lines
}
