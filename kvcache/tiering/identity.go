package tiering

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/kvtier/kvtier/internal/tierenv"
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

// blobName matches Ollama's name of a blob: the digest that Ollama verified when writing the
// blob.
var blobName = regexp.MustCompile(`^sha256-([0-9a-f]{64})$`)

// weights is the SHA-256 of a model file, in hex.
func (d *digests) weights(path string) (string, error) {
	if m := blobName.FindStringSubmatch(filepath.Base(path)); m != nil {
		return m[1], nil
	}
	return d.file(path)
}

// engineDigest covers all code that computes: the bytes of the executable and of its compute
// libraries. A version string is not enough: a plain build has none, and low bits change
// with the compiler, too.
func engineDigest(files *digests) (string, error) {
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
func executableDigest(files *digests) (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	f, err := os.Open("/proc/self/exe") // Linux
	if err != nil {
		return files.file(path)
	}
	defer f.Close()
	return files.opened(path, f)
}
