package tiering

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/kvtier/kvtier/internal/digests"
	"github.com/ollama/ollama/ml"
)

// libraryDigests are the digests of the libraries that this process computes with.
func libraryDigests(files *digests.Files) ([]string, error) {
	paths, err := libraries()
	if err != nil {
		return nil, err
	}
	all, err := files.All(paths)
	if err != nil {
		return nil, err
	}
	again, err := libraries()
	if err == nil && !slices.Equal(paths, again) {
		err = errors.New("the libraries of Ollama were replaced while they were read; load the model again")
	}
	return all, err
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
		return digests.LibrariesIn(dirs)
	}
	return digests.Mapped(string(maps), dirs)
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
