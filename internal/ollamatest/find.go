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

const modulePath = "github.com/kvtier/kvtier"

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
	name := "ollama"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	root, err := repositoryRoot()
	if errors.Is(err, ErrNoBinary) {
		return besideProgram(name)
	}
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "build", "ollama", "bin", name)
	if _, err := os.Stat(path); err != nil {
		return "", ErrNoBinary
	}
	return path, nil
}

// besideProgram returns the file of a name in the folder of this program: make build puts kvtier
// beside its ollama.
func besideProgram(name string) (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	path := filepath.Join(filepath.Dir(program), name)
	if _, err := os.Stat(path); err != nil {
		return "", ErrNoBinary
	}
	return path, nil
}

// repositoryRoot is the nearest folder, from the working directory up, with this module's
// go.mod.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the working directory: %w", err)
	}
	for {
		gomod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(gomod), "module "+modulePath+"\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", ErrNoBinary
		}
		dir = parent
	}
}
