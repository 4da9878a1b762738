package digests

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// computes matches the names of libraries that decide low bits: those of ggml and llama.cpp, and
// GPU makers' libraries for matrix products, in any directory. The C library and drivers are left out:
// with them, every update of the system would make all pages useless.
var computes = regexp.MustCompile(`(?i)ggml|libllama|libmtmd|cublas|cudart|hipblas|rocblas|amdhip`)

// isLibrary matches the names of shared libraries of all systems.
var isLibrary = regexp.MustCompile(`(?i)\.(so(\.[0-9.]+)?|dylib|dll)$`)

// LibrariesIn lists all libraries in directories, and ggml's other files, such as shaders. A
// missing directory has none.
func LibrariesIn(dirs []string) ([]string, error) {
	var paths []string
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if !e.IsDir() && (isLibrary.MatchString(e.Name()) || computes.MatchString(e.Name())) {
				paths = append(paths, filepath.Join(dir, e.Name()))
			}
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// Mapped lists, from the text of /proc/self/maps, the libraries in the engine's own
// directories, and compute libraries in any directory.
func Mapped(maps string, dirs []string) ([]string, error) {
	var paths []string
	for _, line := range strings.Split(maps, "\n") {
		i := strings.IndexByte(line, '/')
		if i < 0 {
			continue
		}
		path, deleted := strings.CutSuffix(line[i:], " (deleted)")
		if !isLibrary.MatchString(path) || !slices.Contains(dirs, filepath.Dir(path)) && !computes.MatchString(filepath.Base(path)) {
			continue
		}
		if deleted {
			return nil, fmt.Errorf("%s was replaced after it was loaded; load the model again", path)
		}
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}
