package identity

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/digests"
)

// code lists the program and the libraries of a process.
func code(pid int) (exe string, libraries []string, err error) {
	if exe, err = os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil {
		return "", nil, err
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return "", nil, err
	}
	libraries, err = digests.Mapped(string(maps), []string{filepath.Dir(exe)})
	return exe, libraries, err
}

// drivers lists the libraries of GPUs' drivers that a process has mapped: also a static program has them.
func drivers(pid int) (libraries []string) {
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)) // code has just read it
	for _, line := range strings.Split(string(maps), "\n") {
		_, path, _ := strings.Cut(line, "/")
		if slices.ContainsFunc(vendors, func(v vendor) bool { return v.libraries.MatchString(filepath.Base(path)) }) {
			libraries = append(libraries, "/"+path)
		}
	}
	return libraries
}

// openProgram opens the program that a process runs, even if another file has its name now.
func openProgram(pid int, _ string) (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/%d/exe", pid))
}

// machine names the code that computes besides the engine's own: none, because the system's
// libraries are among those that the process has mapped.
func machine() []string { return nil }
