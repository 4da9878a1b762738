package tiering

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

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
