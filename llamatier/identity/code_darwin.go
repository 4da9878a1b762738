package identity

import (
	"bytes"
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// code finds the program of a process, or a file that has taken its place, and all libraries that lie beside
// it: which of them the process has mapped is not known. The system's libraries are in no files, and a GPU is
// part of the processor.
func code(pid int) (p program, err error) {
	args, err := unix.SysctlRaw("kern.procargs2", pid)
	if err != nil {
		return p, err
	}
	if len(args) < argcBytes {
		return p, errors.New("the system does not tell the program of the process")
	}
	path, _, _ := bytes.Cut(args[argcBytes:], []byte{0})
	if p.name, err = filepath.EvalSymlinks(string(path)); err != nil {
		return p, err
	}
	p.file = p.name
	for _, pattern := range []string{"*.dylib", "*.so", "*.metal", "*.metallib"} {
		found, err := filepath.Glob(filepath.Join(filepath.Dir(p.name), pattern))
		if err != nil {
			return p, err
		}
		p.libraries = append(p.libraries, found...)
	}
	for _, name := range []string{"kern.osversion", "machdep.cpu.brand_string"} {
		value, _ := unix.Sysctl(name) // without it the name stands for all
		p.system = append(p.system, name+" "+value)
	}
	return p, nil
}

// argcBytes are the bytes before the program's path: the number of arguments.
const argcBytes = 4
