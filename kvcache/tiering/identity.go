package tiering

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ollama/ollama/ml"

	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/tierenv"
)

func identityOf(m Model, c tierenv.Config, files *digests.Files) (map[string]string, error) {
	weights, err := files.Weights(m.Path)
	if err != nil {
		return nil, fmt.Errorf("identify the model's weights: %w", err)
	}
	var adapters []string
	for _, path := range m.Adapters {
		digest, err := files.Weights(path)
		if err != nil {
			return nil, fmt.Errorf("identify an adapter: %w", err)
		}
		adapters = append(adapters, digest)
	}
	engine, err := engineDigest(files)
	if err != nil {
		return nil, fmt.Errorf("identify the engine: %w", err)
	}
	return map[string]string{
		tierenv.KeySchema:     tierenv.Schema,
		tierenv.KeyWeights:    weights,
		tierenv.KeyAdapters:   strings.Join(adapters, ","),
		tierenv.KeyCacheType:  m.CacheType,
		tierenv.KeyEngine:     engine,
		tierenv.KeyNumerics:   m.Numerics,
		tierenv.KeyPageTokens: fmt.Sprint(c.PageTokens),
		tierenv.KeyNamespace:  c.Namespace,
	}, nil
}

// engineDigest covers all code that computes: the bytes of the executable and of its compute libraries.
// A version string is not enough: a plain build has none, and low bits change with the compiler, too.
func engineDigest(files *digests.Files) (string, error) {
	exe, err := executableDigest(files)
	if err != nil {
		return "", err
	}
	libraries, err := libraryDigests(files)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, digest := range append([]string{exe}, libraries...) {
		fmt.Fprintln(h, digest)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// executableDigest is the digest of the running file, even if another file has its name now.
func executableDigest(files *digests.Files) (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	f, err := os.Open("/proc/self/exe") // Linux
	if err != nil {
		return files.File(path)
	}
	defer f.Close()
	return files.Opened(path, f)
}

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

// libraryDirs are the directories from which Ollama loads libraries, with symbolic links resolved: one
// with libraries for the CPU, and below it one for each kind of GPU, such as cuda_v12. The server lists
// those in use in OLLAMA_LIBRARY_PATH; without the variable all are taken.
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
