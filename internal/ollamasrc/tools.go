package ollamasrc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

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
