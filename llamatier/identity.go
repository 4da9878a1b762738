package llamatier

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/launch"
)

// Identity returns the identity of the pages of an engine: everything that decides a row's
// bytes except the tokens before it. numerics are arguments that change rows. pid is the
// engine's process, exe its program.
func Identity(c launch.Command, numerics []string, config tierenv.Config, shape *llamastate.Shape, exe string, pid int, files *digests.Files) (map[string]string, error) {
	weights, err := files.Weights(c.Model())
	if err != nil {
		return nil, fmt.Errorf("identify the model's weights: %w", err)
	}
	adapters, err := files.All(c.Adapters())
	if err != nil {
		return nil, fmt.Errorf("identify an adapter: %w", err)
	}
	engine, err := engineDigest(exe, pid, files)
	if err != nil {
		return nil, fmt.Errorf("identify llama-server: %w", err)
	}
	form, err := json.Marshal(shape)
	if err != nil {
		return nil, err
	}
	return map[string]string{
		tierenv.KeySchema:     tierenv.Schema,
		tierenv.KeyWeights:    weights,
		tierenv.KeyAdapters:   strings.Join(adapters, ","),
		tierenv.KeyCacheType:  hash(string(form)),
		tierenv.KeyEngine:     engine,
		tierenv.KeyNumerics:   strings.Join(numerics, " "),
		tierenv.KeyPageTokens: fmt.Sprint(config.PageTokens),
		tierenv.KeyNamespace:  config.Namespace,
	}, nil
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// engineDigest covers all code that computes: the engine's program and the libraries that its
// process has mapped.
func engineDigest(exe string, pid int, files *digests.Files) (string, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return "", err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(exe))
	if err != nil {
		return "", err
	}
	libraries, err := digests.Mapped(string(maps), []string{dir})
	if err != nil {
		return "", err
	}
	all, err := files.All(append(slices.Clone(libraries), exe))
	if err != nil {
		return "", err
	}
	return hash(strings.Join(all, "\n")), nil
}
