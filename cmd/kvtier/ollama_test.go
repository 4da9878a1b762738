package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
)

// server is our llama-server, built once.
var server struct {
	sync.Once
	program []byte
	err     error
}

// buildServer builds our llama-server, because kvtier tells it by Go's notes from others.
func buildServer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: server FILE")
	}
	server.Do(func() {
		dir, err := os.MkdirTemp("", "kvtier-")
		ts.Check(err)
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, "kvtier-llama-server")
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, "github.com/kvtier/kvtier/cmd/kvtier-llama-server")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			server.err = err
			ts.Logf("%s", out)
			return
		}
		server.program, server.err = os.ReadFile(path)
	})
	ts.Check(server.err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), server.program, 0o700))
	ts.Check(os.Chmod(ts.MkAbs(args[0]), 0o755))
}

func TestAsk(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "Yes\n": true, "n\n": false, "\n": false, "": false, "yeah\n": false} {
		var out bytes.Buffer
		require.Equal(t, want, ask(strings.NewReader(answer), &out), answer)
		require.Equal(t, "Continue? [y/N] ", out.String())
	}
}
