//go:build cgo

package kvcachedtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// dirEnv names the folder that scripts/kvcached-tools fills.
const dirEnv = "KVTIER_KVCACHED_DIR"

// timeout is the longest that anything here is waited for.
const timeout = time.Minute

// kvctl and kvtop are modules of kvcached. Its package makes programs of their functions main.
const (
	kvctl = "kvcached.cli.kvctl"
	kvtop = "kvcached.cli.kvtop"
)

// toolsDir skips the test without the tools.
func toolsDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv(dirEnv)
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "build", "kvcached")
	}
	dir, err := filepath.Abs(dir)
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(dir, "contents")); err != nil {
		const remedy = "%v: prepare kvcached's tools with scripts/kvcached-tools, or name their folder in %s"
		if os.Getenv("CI") == "true" {
			t.Fatalf(remedy, err, dirEnv)
		}
		t.Skipf(remedy, err, dirEnv)
	}
	return dir
}

// python prepares a program of Python that has kvcached. It ends with the test.
func python(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	dir := toolsDir(t)
	stub, err := filepath.Abs("testdata")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "python3", args...)
	cmd.Env = append(os.Environ(), "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "TERM=linux", "HOME="+t.TempDir(),
		"PYTHONPATH="+strings.Join([]string{stub, filepath.Join(dir, "tools"), filepath.Join(dir, "python")}, ":"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// start starts a program that the test or its end kills.
func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
}

// run runs kvctl, and returns the text that it prints, and its exit status.
func run(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	text, err := python(t, append([]string{"-m", kvctl}, args...)...).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return string(text), exit.ExitCode()
	}
	require.NoError(t, err, "kvctl %s: %s", args, text)
	return string(text), 0
}

// listed are the numbers of `kvctl list --json`.
type listed struct {
	Name  string `json:"ipc"`
	Limit int64  `json:"limit_bytes"`
	Used  int64  `json:"used_bytes"`
}

// list is kvctl's list by name. Names are those to ask for; without any all are asked for.
func list(t *testing.T, names ...string) map[string]listed {
	t.Helper()
	out, code := run(t, append([]string{"list", "--json"}, names...)...)
	require.Zero(t, code, out)
	var all []listed
	require.NoError(t, json.Unmarshal([]byte(out), &all), out)
	byName := make(map[string]listed)
	for _, one := range all {
		byName[one.Name] = one
	}
	return byName
}

// prompt is that of kvctl's shell.
const prompt = "kvcached> "

// A shell is `kvctl shell`: one process for many commands.
type shell struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Reader
}

func startShell(t *testing.T) *shell {
	t.Helper()
	cmd := python(t, "-m", kvctl, "shell")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	start(t, cmd)
	s := &shell{t, in, bufio.NewReader(out)}
	s.read()
	return s
}

// read reads up to the next prompt.
func (s *shell) read() string {
	s.t.Helper()
	text, err := readUntil(s.out, func(text []byte) bool { return bytes.HasSuffix(text, []byte(prompt)) })
	require.NoError(s.t, err, "reading from kvctl: %s", text)
	return strings.TrimSuffix(text, prompt)
}

// do runs one command, and returns the text that it printed.
func (s *shell) do(format string, args ...any) string {
	s.t.Helper()
	_, err := fmt.Fprintf(s.in, format+"\n", args...)
	require.NoError(s.t, err)
	return s.read()
}

// readUntil reads until the text so far is enough.
func readUntil(from io.ByteReader, enough func([]byte) bool) (string, error) {
	var text []byte
	for !enough(text) {
		b, err := from.ReadByte()
		if err != nil {
			return string(text), err
		}
		text = append(text, b)
	}
	return string(text), nil
}

// human is a size as kvcached prints it.
func human(bytes int64) string {
	size := float64(bytes)
	for _, unit := range []string{"B", "KB", "MB", "GB"} {
		if size < 1024 {
			return fmt.Sprintf("%.2f %s", size, unit)
		}
		size /= 1024
	}
	return fmt.Sprintf("%.2f TB", size)
}

// line is that of a segment in kvctl's table.
func line(name string, limit, used int64) string {
	return fmt.Sprintf("%-24s %12s %12s %5.1f %%", name, human(limit), human(used), float64(used)/float64(limit)*100)
}
