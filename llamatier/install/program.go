package install

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/internal/version"
)

// ourPackage is the package that Go has noted in our program.
const ourPackage = "github.com/kvtier/kvtier/cmd/kvtier"

// program reads who built a file, from the notes that Go leaves in its programs.
func program(path string) (ourVersion string, ours bool) {
	info, err := buildinfo.ReadFile(path)
	if err != nil || info.Path != ourPackage {
		return "", false // not Go's, or not ours
	}
	return version.Of(info), true
}

// file is a file in the place of a llama-server.
type file struct {
	path    string
	is      kind
	version string // of ours
	digest  string // SHA-256 of its content
	mode    fs.FileMode
}

type kind int

const (
	missing kind = iota
	ours
	stock
)

// serverBytesMax bounds the file that is read for its digest: linkers make no larger program by default.
const serverBytesMax = 2 << 30

// programs tells our program from other files: it returns the version of ours.
type programs func(path string) (version string, ours bool)

// look identifies the file in the place of a llama-server. Anything that cannot be a
// llama-server is an error.
func (is programs) look(path string) (file, error) {
	f := file{path: path}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			return f, fmt.Errorf("%s is a link to a file that does not exist", path)
		}
		return f, nil
	}
	if err != nil {
		return f, err
	}
	f.mode = info.Mode()
	switch {
	case !f.mode.IsRegular():
		return f, fmt.Errorf("%s is not a file", path)
	case info.Size() == 0:
		return f, fmt.Errorf("%s is empty", path)
	case info.Size() > serverBytesMax:
		return f, fmt.Errorf("%s is no llama-server: it has more than 2 GiB", path)
	case f.mode&0o111 == 0:
		return f, fmt.Errorf("%s cannot be run, its mode is %04o", path, f.mode.Perm())
	}
	f.is = stock
	if v, own := is(path); own {
		f.is, f.version = ours, v
	}
	f.digest, err = digestOf(path, info)
	return f, err
}

// digestOf is the SHA-256 of the file that info describes.
func digestOf(path string, info fs.FileInfo) (string, error) {
	f, err := openSame(path, info)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// source returns our program, which will be installed.
func (m *Machine) source(path string) (file, error) {
	f, err := m.Program.look(path)
	switch {
	case err != nil:
		return f, err
	case f.is == missing:
		return f, fmt.Errorf("%s, this program, does not exist any more; run it from where it lies", path)
	case f.is != ours:
		return f, fmt.Errorf("%s does not say that it is kvtier; take it from a release's archive, or from make kvtier", path)
	}
	return f, nil
}

// trusted reports whether only this user and root can change a file, or put another one in its place. Such
// a file may be run, by the path without links that trusted returns.
func (m *Machine) trusted(path string) (resolved string, ok bool) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", false
	}
	for p := resolved; ; p = filepath.Dir(p) {
		info, err := os.Lstat(p)
		if err != nil || info.Mode()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
			return "", false
		}
		if uid, known := m.Owner(info); known && uid != 0 && uid != m.UID {
			return "", false
		}
		if p == filepath.Dir(p) {
			return resolved, true
		}
	}
}
