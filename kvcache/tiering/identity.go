package tiering

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ollama/ollama/ml"

	"github.com/kvtier/kvtier/kvcache/tiering/tierenv"
)

func identityOf(m Model, c tierenv.Config, files *digests) (map[string]string, error) {
	weights, err := files.weights(m.Path)
	if err != nil {
		return nil, fmt.Errorf("identify the model's weights: %w", err)
	}
	var adapters []string
	for _, path := range m.Adapters {
		digest, err := files.weights(path)
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

// blobName is how Ollama names a blob: by the digest it verified when it wrote it.
var blobName = regexp.MustCompile(`^sha256-([0-9a-f]{64})$`)

// weights is the SHA-256 of a model file.
func (d *digests) weights(path string) (string, error) {
	if m := blobName.FindStringSubmatch(filepath.Base(path)); m != nil {
		return m[1], nil
	}
	return d.file(path)
}

// engineDigest covers the code that computes: the executable's own bytes and those of the
// backend libraries in use. A version string would not do, since a plain build has none,
// and low bits change with the compiler too.
func engineDigest(files *digests) (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	libraries, err := backendLibraries()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, path := range append([]string{exe}, libraries...) {
		digest, err := files.file(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, digest)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// backendLibraries lists the ggml libraries this process has mapped, or, where the system
// does not tell, all that Ollama could have loaded.
func backendLibraries() ([]string, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return filepath.Glob(filepath.Join(ml.LibOllamaPath, "*ggml*"))
	}
	seen := make(map[string]bool)
	for _, line := range strings.Split(string(maps), "\n") {
		if i := strings.IndexByte(line, '/'); i >= 0 && strings.Contains(filepath.Base(line[i:]), "libggml") {
			seen[line[i:]] = true
		}
	}
	var paths []string
	for path := range seen {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths, nil
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
