package ollamasrc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// stopGrace is the time that an interrupted child has to clean up (git removes its lock
// files, ninja its half-written objects).
const stopGrace = 5 * time.Second

// command is exec.CommandContext for children that have children: cancelling
// stops the whole group.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	ownGroup(cmd)
	cmd.Cancel = func() error { return interrupt(cmd) }
	cmd.WaitDelay = stopGrace
	return cmd
}

// logTailLines is the number of lines of a failed program's log in its error.
const logTailLines = 30

// runLogged runs a program. The program's output goes to a log with the given name, and line
// by line to watch, which may be nil.
func runLogged(ctx context.Context, lay Layout, name string, cmd *exec.Cmd, watch func(line string)) error {
	if err := os.MkdirAll(lay.Log(), 0o755); err != nil {
		return err
	}
	path := filepath.Join(lay.Log(), strings.ReplaceAll(name, " ", "-")+".log")
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", name, err)
	}
	fmt.Fprintf(file, "%s\n\n", strings.Join(cmd.Args, " "))
	out := &lineWriter{log: file, watch: watch}
	cmd.Stdout, cmd.Stderr = out, out
	runErr := cmd.Run()
	logErr := errors.Join(out.err, file.Close())
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case runErr != nil:
		end := tail(path, logTailLines)
		return fmt.Errorf("%s failed (%w); the last %s of %s:\n\n%s", name, runErr, Plural(len(end), "line"), Rel(path), strings.Join(end, "\n"))
	case logErr != nil:
		return fmt.Errorf("writing the log of %s: %w", name, logErr)
	}
	return nil
}

// lineWriter copies to a log and passes whole lines to watch. An error of the log is
// remembered and not returned: an error would kill a compiler.
type lineWriter struct {
	mu    sync.Mutex
	log   io.Writer
	watch func(string) // may be nil
	rest  []byte
	err   error
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.log.Write(p); err != nil && w.err == nil {
		w.err = err
	}
	if w.watch == nil {
		return len(p), nil
	}
	w.rest = append(w.rest, p...)
	for {
		// Ninja ends a status line with \r on a terminal, \n otherwise.
		i := bytes.IndexAny(w.rest, "\r\n")
		if i < 0 {
			return len(p), nil
		}
		w.watch(string(w.rest[:i]))
		w.rest = w.rest[i+1:]
	}
}

// tail returns the last n lines of a file, or as many as can be read.
func tail(path string, n int) []string {
	text, _ := os.ReadFile(path)
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	return lines[max(0, len(lines)-n):]
}

var errNoGo = errors.New("the go command was not found; install Go from https://go.dev/dl")

// needsCMake reports whether backends are compiled separately from the binary. On Apple
// silicon the binary itself holds the CPU and Metal backends.
func needsCMake() bool {
	return runtime.GOOS != "darwin" || runtime.GOARCH != "arm64"
}

// checkTools returns one error with all missing programs.
func checkTools() error {
	var missing []string
	need := func(name string, candidates ...string) {
		for _, c := range candidates {
			// CC and CXX may carry flags or a launcher such as ccache.
			if f := strings.Fields(c); len(f) > 0 {
				if _, err := exec.LookPath(f[0]); err == nil {
					return
				}
			}
		}
		missing = append(missing, name)
	}
	need("git", "git")
	need("go", "go")
	if needsCMake() {
		need("cmake", "cmake")
	}
	need("a C compiler", os.Getenv("CC"), "cc", "gcc", "clang")
	need("a C++ compiler", os.Getenv("CXX"), "c++", "g++", "clang++")
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("building needs %s, which %s not found on PATH; on Debian or Ubuntu: apt install git cmake ninja-build build-essential (Go from https://go.dev/dl)",
		strings.Join(missing, ", "), map[bool]string{true: "was", false: "were"}[len(missing) == 1])
}

// findNVCC searches the places where CMake searches, and those of the CUDA installer, which
// does not change PATH. findNVCC returns "" without a CUDA compiler.
func findNVCC() string {
	candidates := []string{os.Getenv("CUDACXX"), "nvcc"}
	for _, home := range []string{os.Getenv("CUDA_PATH"), os.Getenv("CUDA_HOME"), "/usr/local/cuda"} {
		if home != "" {
			candidates = append(candidates, filepath.Join(home, "bin", "nvcc"))
		}
	}
	for _, c := range candidates {
		if c == "" {
			continue
		}
		if path, err := exec.LookPath(c); err == nil {
			return path
		}
	}
	return ""
}

// versionTimeout bounds the run of a binary that hangs.
const versionTimeout = 10 * time.Second

// BinaryVersion asks a built ollama for its version. OLLAMA_HOST is a dead address, because
// a running server would otherwise answer.
func BinaryVersion(ctx context.Context, path string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := command(limited, path, "--version")
	cmd.Env = append(os.Environ(), "OLLAMA_HOST=127.0.0.1:1")
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return "", fmt.Errorf("running %s --version: %w", Rel(path), err)
	}
	const marker = "version is "
	_, version, ok := strings.Cut(string(out), marker)
	if !ok {
		return "", fmt.Errorf("running %s --version: no version in %q", Rel(path), out)
	}
	return strings.Fields(version)[0], nil
}
