package secretfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
)

// Read reads a regular file of at most so many bytes, which other users may neither read nor replace. No error has
// what is in the file.
func Read(path string, most int) (string, error) {
	info, err := os.Stat(path) // opening a pipe may hang
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return "", err
	}
	if perm := info.Mode().Perm(); perm&0o027 != 0 && runtime.GOOS != "windows" {
		return "", fmt.Errorf("%s has mode %04o, and other users may read or replace it: run chmod 600 %s", path, perm, path)
	}
	text, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if len(text) > most {
		return "", fmt.Errorf("%s has more than %d bytes: leave nothing else in it", path, most)
	}
	return string(text), err
}
