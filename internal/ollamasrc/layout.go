package ollamasrc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/mod/modfile"
)

// kvtierModule is the module whose go.mod marks the repository root.
const kvtierModule = "github.com/kvtier/kvtier"

// FindRoot searches the working directory and its parents for the folder of kvtier's go.mod.
func FindRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; {
		mod, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil && modfile.ModulePath(mod) == kvtierModule {
			return at, nil
		}
		up := filepath.Dir(at)
		if up == at {
			return "", fmt.Errorf("%s is not inside a kvtier checkout (no go.mod of %s here or above); change to its folder", dir, kvtierModule)
		}
		at = up
	}
}

// TempDir makes a temporary folder in build/ of the checkout around the working directory, whose root
// it returns, too. On many systems /tmp is in memory.
func TempDir(pattern string) (root, dir string, err error) {
	root, err = FindRoot()
	if err == nil {
		err = os.MkdirAll(filepath.Join(root, "build"), 0o755)
	}
	if err == nil {
		dir, err = os.MkdirTemp(filepath.Join(root, "build"), pattern)
	}
	if err != nil {
		return "", "", fmt.Errorf("making a temporary folder: %w", err)
	}
	return root, dir, nil
}

// Layout names every path a build uses. Root and Dir are absolute.
type Layout struct {
	Root string // kvtier's repository
	Dir  string // the build directory
}

// NewLayout refuses a build directory that holds kvtier itself: the directory's go.work
// would then apply to every Go command in the checkout.
func NewLayout(root, dir string) (Layout, error) {
	rel, err := filepath.Rel(dir, root)
	if err == nil && (rel == "." || filepath.IsLocal(rel)) {
		return Layout{}, fmt.Errorf("%s holds the kvtier checkout; give --dir a folder of its own, such as build/ollama", dir)
	}
	return Layout{Root: root, Dir: dir}, nil
}

func (l Layout) Src() string     { return filepath.Join(l.Dir, "src") }
func (l Layout) Include() string { return filepath.Join(l.Dir, "include") }
func (l Layout) CMake() string   { return filepath.Join(l.Dir, "cmake") }
func (l Layout) Log() string     { return filepath.Join(l.Dir, "log") }
func (l Layout) GoWork() string  { return filepath.Join(l.Dir, "go.work") }

// Binary is the patched ollama.
func (l Layout) Binary() string {
	name := "ollama"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(l.Dir, "bin", name)
}

// InstallPrefix is the prefix of CMake's install, which adds lib/ollama. The prefix follows
// upstream's ml.LibOllamaPath: ../lib/ollama from the binary's folder on Linux, lib/ollama
// in that folder on Windows.
func (l Layout) InstallPrefix() string {
	if runtime.GOOS == "windows" {
		return filepath.Join(l.Dir, "bin")
	}
	return l.Dir
}

// Libraries is the folder of compiled backends.
func (l Layout) Libraries() string {
	return filepath.Join(l.InstallPrefix(), "lib", "ollama")
}

// Lib lists the compiled backends by file name.
func (l Layout) Lib() ([]string, error) {
	var names []string
	err := filepath.WalkDir(l.Libraries(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if name := d.Name(); strings.Contains(name, ".so") || strings.HasSuffix(name, ".dylib") || strings.HasSuffix(name, ".dll") {
			rel, err := filepath.Rel(l.Libraries(), path)
			if err != nil {
				return err
			}
			names = append(names, filepath.ToSlash(rel))
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return names, err
}

// Rel shortens a path in output: relative to the working directory if that is shorter.
func Rel(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	rel, err := filepath.Rel(wd, path)
	if err != nil || len(rel) > len(path) {
		return path
	}
	return rel
}
