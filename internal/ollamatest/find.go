package ollamatest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// BinaryEnv names the ollama executable to use instead of the repository's own
// build.
const BinaryEnv = "KVTIER_OLLAMA"

// ErrNoBinary means that there is no Ollama to start.
var ErrNoBinary = errors.New("no Ollama to start: run `make build`, or set " + BinaryEnv + " to an ollama executable")

// FindBinary returns the executable that $KVTIER_OLLAMA names or, without that variable,
// build/ollama/bin/ollama in the repository around the working directory. Outside the repository
// FindBinary returns the ollama beside this program. The error is ErrNoBinary if none exists.
func FindBinary() (string, error) {
	if path := os.Getenv(BinaryEnv); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("using the Ollama that %s names: %w", BinaryEnv, err)
		}
		return path, nil
	}
	dir, err := builtDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "ollama")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	if _, err := os.Stat(path); err != nil {
		return "", ErrNoBinary
	}
	return path, nil
}

// builtDir is the folder of programs in the nearest folder, from the working directory up, with
// this module's go.mod. Without one it is the folder of this program: make build puts kvtier
// beside its ollama.
func builtDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the working directory: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		gomod, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil && strings.HasPrefix(string(gomod), "module github.com/kvtier/kvtier\n") {
			return filepath.Join(at, "build", "ollama", "bin"), nil
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	return filepath.Dir(program), nil
}
