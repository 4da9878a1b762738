package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
)

const (
	repository    = "../.."
	firstHour     = "docs/install.md"
	firstHourPart = "## Try it first\n"
	firstHourMost = 10 * time.Minute // half a minute on two idle cores
	endMost       = 10 * time.Second // of processes after the last command
)

// step is a block of commands of a part of a document, and the output that the document shows behind it.
type step struct {
	line     int
	commands string
	shown    string // empty where no output is shown
}

// stepsOf reads the blocks of the last part of a document, which a heading begins. A block without a
// language, or of another one, is no step.
func stepsOf(t *testing.T, document, heading string) (steps []step) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository, document))
	require.NoError(t, err)
	before, part, found := strings.Cut(string(data), "\n"+heading)
	require.True(t, found, "%s has no %q", document, heading)
	first := strings.Count(before, "\n") + 3 // line of the document behind the heading
	var block *string
	for i, line := range strings.SplitAfter(part, "\n") {
		i += first
		switch fence := strings.TrimSpace(line); {
		case fence == "```shell":
			steps = append(steps, step{line: i})
			block = &steps[len(steps)-1].commands
		case fence == "```text" && block == nil:
			require.NotEmpty(t, steps, "%s:%d: output before any command", document, i)
			require.Empty(t, steps[len(steps)-1].shown, "%s:%d: a second output", document, i)
			block = &steps[len(steps)-1].shown
		case strings.HasPrefix(fence, "```"):
			block = nil
		case block != nil:
			*block += line
		}
	}
	return steps
}

// TestFirstHour follows a part of docs/install.md: one shell runs all of its commands in a folder that
// has this repository's files and no others. Only the two ports are others, and make does not
// build again.
func TestFirstHour(t *testing.T) {
	ollama, err := ollamatest.FindBinary()
	if err != nil {
		t.Skip(err)
	}
	steps := stepsOf(t, firstHour, firstHourPart)
	dir := freshRepository(t, ollama)
	ports := []string{"11435", freePort(t), "9401", freePort(t)}
	script := "set -euo pipefail\nmake() { [ \"$*\" = build ]; }\n"
	for i, s := range steps {
		script += fmt.Sprintf("echo %s\n%s", stepMark(i), s.commands)
	}
	script = strings.NewReplacer(ports...).Replace(script)
	started := time.Now()
	out, err := runShell(t, dir, script)
	took := time.Since(started)
	outputs := make([]string, len(steps))
	for i := range steps {
		_, rest, found := strings.Cut(out, stepMark(i)+"\n")
		if !found {
			break // a command before failed
		}
		outputs[i], _, _ = strings.Cut(rest, stepMark(i+1)+"\n")
	}
	last := 0
	for i, output := range outputs {
		if strings.Contains(out, stepMark(i)+"\n") {
			last = i
		}
		t.Logf("%s:%d\n%s\n%s", firstHour, steps[i].line, steps[i].commands, output)
	}
	require.NoError(t, err, "%s:%d failed\n%s", firstHour, steps[last].line, serverLog(dir))
	t.Logf("all commands took %v", took.Round(time.Second))
	for i, s := range steps {
		if s.shown != "" {
			assert.NoError(t, agree(s.shown, outputs[i]), "%s:%d", firstHour, s.line)
		}
	}
	for _, promised := range []string{
		"in 4 requests in a row", "\ntoken_differs  4 ", "\nnever_seen     1 ",
		`ollama_kv_restores_total{engine="ollama",model="first:latest"} 2`,
	} {
		require.Contains(t, out, promised)
	}
	requireNothingLeft(t, dir, ports[1], ports[3])
}

func stepMark(i int) string { return fmt.Sprintf("== first hour, step %d ==", i) }

// serverLog is the end of the log of a server that the commands started.
func serverLog(dir string) string {
	const lines = 60
	data, err := os.ReadFile(filepath.Join(dir, "build", "first-hour", "serve.log"))
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(data), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// freshRepository makes a folder with the files of the repository, and with the programs that make
// build leaves behind.
func freshRepository(t *testing.T, ollama string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	root, err := filepath.Abs(repository)
	require.NoError(t, err)
	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	for _, e := range entries {
		if e.Name() != "build" && e.Name() != ".git" {
			require.NoError(t, os.Symlink(filepath.Join(root, e.Name()), filepath.Join(dir, e.Name())))
		}
	}
	bin := filepath.Join(dir, "build", "ollama", "bin")
	require.NoError(t, os.MkdirAll(bin, 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "home"), 0o700))
	ollama, err = filepath.Abs(ollama)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(ollama, filepath.Join(bin, "ollama")))
	out, err := exec.Command("go", "build", "-o", filepath.Join(bin, "kvtier"), "../../cmd/kvtier").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// runShell runs a script in a process group of its own, with its own home, and requires that no
// process of the group is left. The caches of Go are those of this user.
func runShell(t *testing.T, dir, script string) (output string, err error) {
	t.Helper()
	path := filepath.Join(dir, "home", "script")
	require.NoError(t, os.WriteFile(path, []byte(script), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), firstHourMost)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", path)
	cmd.Dir = dir
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "OLLAMA_") || strings.HasPrefix(v, "KVTIER_") || strings.HasPrefix(v, "XDG_") || strings.HasPrefix(v, "HOME=")
	}), "HOME="+filepath.Join(dir, "home"), "TERM=dumb")
	goEnv, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE", "GOPATH").Output()
	require.NoError(t, err)
	for i, value := range strings.Fields(string(goEnv)) {
		cmd.Env = append(cmd.Env, []string{"GOCACHE", "GOMODCACHE", "GOPATH"}[i]+"="+value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	file, err := os.Create(filepath.Join(dir, "home", "output")) // a server that is left does not hold a pipe
	require.NoError(t, err)
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	require.NoError(t, cmd.Start())
	group := -cmd.Process.Pid
	cmd.Cancel = func() error { return syscall.Kill(group, syscall.SIGKILL) }
	err = cmd.Wait()
	if err == nil {
		for deadline := time.Now().Add(endMost); ; runtime.Gosched() {
			if syscall.Kill(group, 0) != nil {
				break
			}
			if time.Now().After(deadline) {
				err = fmt.Errorf("processes are left behind: group %d", -group)
				break
			}
		}
	}
	_ = syscall.Kill(group, syscall.SIGKILL) // processes of a failure
	data, readErr := os.ReadFile(file.Name())
	require.NoError(t, readErr)
	return string(data), err
}

// requireNothingLeft looks for files in the folder, and for listeners.
func requireNothingLeft(t *testing.T, dir string, ports ...string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "build"))
	require.NoError(t, err)
	require.Len(t, entries, 1, "build has more than ollama: %v", entries)
	for _, port := range ports {
		listener, err := net.Listen("tcp", "127.0.0.1:"+port)
		require.NoError(t, err, "a server still listens")
		require.NoError(t, listener.Close())
	}
	require.NoDirExists(t, filepath.Join(dir, "home", ".ollama", "models"))
	require.NoDirExists(t, filepath.Join(dir, "home", ".ollama", "kv-cache"))
}

// masks replace the parts of an output that differ from run to run.
var masks = []struct {
	of *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`\x1b\[[0-9;?]*[a-zA-Z]|[\x{2800}-\x{28ff}]`), ""}, // of ollama's own progress
	{regexp.MustCompile(`\d{4}-\d\d-\d\d( \d\d:\d\d(:\d\d)?)?`), "DATE"},
	{regexp.MustCompile(`(?i)just now|less than a second ago|\d+ (s|min|h|d|seconds?|minutes?|hours?) ago`), "AGO"},
	{regexp.MustCompile(`[0-9a-f]{12,}`), "DIGEST"},
	{regexp.MustCompile(`\d[\d,.]* ?[KMGT]?B(/s)?\b`), "SIZE"},
	{regexp.MustCompile(`(\d+h)?(\d+m)?\d[\d.]*(ns|µs|ms|s|m|h)\b`), "TIME"},
	{regexp.MustCompile(`\d[\d,.]* (ms|s|min|h|d|years?)\b( \d+ (s|min|h))?`), "TIME"},
	{regexp.MustCompile(`[█░]+`), "BAR"},
	{regexp.MustCompile(`\d([\d,.]*\d)?…?`), "N"},
}

// masked is a text as words, so that lines may break at other places.
func masked(text string) string {
	for _, m := range masks {
		text = m.of.ReplaceAllString(text, m.as)
	}
	return strings.Join(strings.Fields(text), " ")
}

// elided is a line of a document in place of any lines.
var elided = regexp.MustCompile(`(?m)^\s*…\s*$`)

// agree compares the output that a document shows with a real one.
func agree(shown, real string) error {
	rest := masked(real)
	parts := elided.Split(shown, -1)
	for i, part := range parts {
		part = masked(part)
		at := strings.Index(rest, part)
		last := i == len(parts)-1
		if last && strings.HasSuffix(rest, part) {
			at = len(rest) - len(part)
		}
		if at < 0 || i == 0 && at > 0 || last && part != "" && at+len(part) < len(rest) {
			return fmt.Errorf("the document shows\n%s\nbut the output is\n%s\nwhich is, masked,\n%s\nand has no\n%s", shown, real, rest, part)
		}
		rest = rest[at+len(part):]
	}
	return nil
}

// TestAgree: the comparison of TestFirstHour finds differences.
func TestAgree(t *testing.T) {
	real := "SLOT TOKENS\n0     5,431\n\nasked 12 s ago, 4 prompts\nof 33 MB\n"
	for shown, same := range map[string]bool{
		real: true,
		"SLOT  TOKENS\n0  12\n\nasked 1 min ago,\n4 prompts of 1.5 GB": true,
		"SLOT TOKENS\n…": true,
		"…\nof 1 MB":     true,
		"SLOT TOKENS\n…\nasked just now, 4 prompts\n…": true,
		"SLOT TOKENS":                   false,
		"…\nasked just now, 3 pages\n…": false,
		"TOKENS\n…":                     false,
		"…\nasked just now":             false,
	} {
		require.Equal(t, same, agree(shown, real) == nil, shown)
	}
}
