package ollamasrc

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

//go:embed stub/miniaudio.h
var miniaudioStub []byte

// header is a C library of one or several header files that a distribution
// packages.
type header struct {
	path    string // in Ollama's #include; its folder is copied
	library string
}

var headers = []header{
	{path: "nlohmann/json.hpp", library: "nlohmann/json"},
	{path: "stb/stb_image.h", library: "stb_image"},
}

// headerPackages is printed whole: a machine that lacks one package usually lacks both, and
// installing a present package does no harm.
const headerPackages = `
  Debian, Ubuntu  apt install nlohmann-json3-dev libstb-dev
  Fedora          dnf install json-devel stb_image-devel
  Arch            pacman -S nlohmann-json stb
  Homebrew        brew install nlohmann-json (it has no stb: use --src)
or build from a git clone of Ollama, which has them: --src DIR`

// headerRoots are the folders searched: CPATH as the compilers do, then the
// places where packages put headers.
func headerRoots() []string {
	var roots []string
	for _, dir := range filepath.SplitList(os.Getenv("CPATH")) {
		if dir != "" {
			roots = append(roots, dir)
		}
	}
	if prefix := os.Getenv("HOMEBREW_PREFIX"); prefix != "" {
		roots = append(roots, filepath.Join(prefix, "include"))
	}
	if runtime.GOOS != "windows" {
		roots = append(roots, "/usr/include", "/usr/local/include", "/opt/homebrew/include")
	}
	return roots
}

// findHeaders returns the root of each header, in the order of headers.
func findHeaders(roots []string) ([]string, error) {
	found := make([]string, len(headers))
	var missing []string
	for i, h := range headers {
		for _, root := range roots {
			if _, err := os.Stat(filepath.Join(root, h.path)); err == nil {
				found[i] = root
				break
			}
		}
		if found[i] == "" {
			missing = append(missing, h.library)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("the Go module of Ollama lacks the C headers of %s and they are not installed; install them:%s",
			strings.Join(missing, " and "), headerPackages)
	}
	return found, nil
}

// installHeaders copies headers to lay.Include(). An include path of /usr/include itself
// would reorder the compiler's own search.
func installHeaders(lay Layout) error {
	found, err := findHeaders(headerRoots())
	if err != nil {
		return err
	}
	err = os.RemoveAll(lay.Include())
	for i, h := range headers {
		folder := filepath.Dir(h.path)
		err = errors.Join(err, os.CopyFS(filepath.Join(lay.Include(), folder), os.DirFS(filepath.Join(found[i], folder))))
	}
	stub := filepath.Join(lay.Include(), "miniaudio", "miniaudio.h")
	err = errors.Join(err, os.MkdirAll(filepath.Dir(stub), 0o755), os.WriteFile(stub, miniaudioStub, 0o644))
	if err != nil {
		return fmt.Errorf("collecting C headers in %s: %w", Rel(lay.Include()), err)
	}
	return nil
}
