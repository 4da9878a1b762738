package ollamasrc

import (
	_ "embed"
	"errors"
	"fmt"
	goversion "go/version"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/mod/modfile"
)

// prepare makes the files that a Go command in the tree needs: the headers that a module
// lacks, and the workspace.
func (b *builder) prepare() error {
	if err := checkTools(); err != nil {
		return err
	}
	if !b.tree.Vendored() {
		if err := installHeaders(b.lay); err != nil {
			return err
		}
	}
	return writeWorkspace(b.lay)
}

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

// writeWorkspace writes the go.work that lets Ollama's packages import kvtier's. Neither
// go.mod is edited: Ollama's go.mod changes in every second release, so a patch of it would
// rarely apply.
func writeWorkspace(lay Layout) error {
	version, err := newerGo(filepath.Join(lay.Src(), "go.mod"), filepath.Join(lay.Root, "go.mod"))
	if err != nil {
		return fmt.Errorf("choosing the Go version of the workspace: %w", err)
	}
	text := "go " + version + "\n\nuse (\n"
	for _, dir := range []string{lay.Src(), lay.Root} {
		text += "\t" + modfile.AutoQuote(workspacePath(lay.Dir, dir)) + "\n"
	}
	return os.WriteFile(lay.GoWork(), []byte(text+")\n"), 0o644)
}

// workspacePath is a relative path, so that a checkout can be moved with its build.
func workspacePath(from, to string) string {
	rel, err := filepath.Rel(from, to)
	switch {
	case err != nil: // another volume has no relative path
		return filepath.ToSlash(to)
	case filepath.IsLocal(rel):
		return "./" + filepath.ToSlash(rel)
	default:
		return filepath.ToSlash(rel)
	}
}

// newerGo returns the newest version in the go lines of files.
func newerGo(paths ...string) (newest string, err error) {
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		mod, err := modfile.ParseLax(path, data, nil)
		if err != nil {
			return "", err
		}
		if mod.Go != nil && goversion.Compare("go"+mod.Go.Version, "go"+newest) > 0 {
			newest = mod.Go.Version
		}
	}
	if newest == "" {
		return "", fmt.Errorf("no go line in %v", paths)
	}
	return newest, nil
}
