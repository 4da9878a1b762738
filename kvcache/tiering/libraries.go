package tiering

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ollama/ollama/ml"
)

// computes matches the names of libraries that decide low bits: ggml's own, and GPU makers'
// libraries for matrix products, in any directory. The C library and drivers are left out:
// with them, every update of the system would make all pages useless.
var computes = regexp.MustCompile(`(?i)ggml|cublas|cudart|hipblas|rocblas|amdhip`)

// isLibrary matches the names of shared libraries of all systems.
var isLibrary = regexp.MustCompile(`(?i)\.(so(\.[0-9.]+)?|dylib|dll)$`)

// libraryDigests are the digests of the libraries that this process computes with.
func libraryDigests(files *digests) ([]string, error) {
	paths, err := libraries()
	if err != nil {
		return nil, err
	}
	digests, err := digestsOf(files, paths)
	if err != nil {
		return nil, err
	}
	again, err := libraries()
	if err == nil && !slices.Equal(paths, again) {
		err = errors.New("the libraries of Ollama were replaced while they were read; load the model again")
	}
	return digests, err
}

// digestsOf are the sorted digests of files, independent of their paths.
func digestsOf(files *digests, paths []string) ([]string, error) {
	var digests []string
	for _, path := range paths {
		digest, err := files.file(path)
		if err != nil {
			return nil, err
		}
		digests = append(digests, digest)
	}
	slices.Sort(digests)
	return digests, nil
}

// libraries lists the libraries that this process computes with, or, on systems without
// /proc, all libraries that Ollama could have loaded.
func libraries() ([]string, error) {
	dirs, err := libraryDirs()
	if err != nil {
		return nil, err
	}
	maps, err := os.ReadFile("/proc/self/maps") // Linux
	if err != nil {
		return librariesIn(dirs)
	}
	return mappedLibraries(string(maps), dirs)
}

// libraryDirs are the directories from which Ollama loads libraries, with symbolic links
// resolved. The server lists them in OLLAMA_LIBRARY_PATH: the directory with libraries for
// the CPU, and below it one for each kind of GPU in use, such as cuda_v12. Without the
// variable, all of these directories are taken.
func libraryDirs() ([]string, error) {
	dirs := filepath.SplitList(os.Getenv("OLLAMA_LIBRARY_PATH"))
	if len(dirs) == 0 {
		dirs = []string{ml.LibOllamaPath}
		entries, err := os.ReadDir(ml.LibOllamaPath)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() {
				dirs = append(dirs, filepath.Join(ml.LibOllamaPath, e.Name()))
			}
		}
	}
	for i, dir := range dirs {
		switch real, err := filepath.EvalSymlinks(dir); {
		case err == nil:
			dirs[i] = real
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return dirs, nil
}

// librariesIn lists all libraries in directories, and ggml's other files, such as shaders. A
// missing directory has none.
func librariesIn(dirs []string) ([]string, error) {
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

// mappedLibraries lists, from the text of /proc/self/maps, the libraries in Ollama's own
// directories, and compute libraries in any directory.
func mappedLibraries(maps string, dirs []string) ([]string, error) {
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
