package identity

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// code lists the program of a process, and all libraries that lie beside it: which of them the
// process has mapped is not known.
func code(pid int) (exe string, libraries []string, err error) {
	args, err := unix.SysctlRaw("kern.procargs2", pid)
	if err != nil {
		return "", nil, err
	}
	if len(args) < argcBytes {
		return "", nil, errors.New("the system does not tell the program of the process")
	}
	path, _, _ := bytes.Cut(args[argcBytes:], []byte{0})
	if exe, err = filepath.EvalSymlinks(string(path)); err != nil {
		return "", nil, err
	}
	for _, pattern := range []string{"*.dylib", "*.so", "*.metal", "*.metallib"} {
		found, err := filepath.Glob(filepath.Join(filepath.Dir(exe), pattern))
		if err != nil {
			return "", nil, err
		}
		libraries = append(libraries, found...)
	}
	return exe, libraries, nil
}

// argcBytes are the bytes before the program's path: the number of arguments.
const argcBytes = 4

// openProgram opens the program of a process, or a file that has taken its place.
func openProgram(_ int, exe string) (*os.File, error) { return os.Open(exe) }

// machine names the code and devices that compute besides the engine's own code: the system's
// libraries, which are in no files, the processor and the GPU that is part of it.
func machine() []string {
	var names []string
	for _, name := range []string{"kern.osversion", "machdep.cpu.brand_string"} {
		value, _ := unix.Sysctl(name) // without it the name stands for all
		names = append(names, name+" "+value)
	}
	return names
}

// drivers are not known: see machine.
func drivers(int) []string { return nil }
