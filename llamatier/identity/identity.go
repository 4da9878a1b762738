package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/launch"
)

// Of returns the identity of the pages of an engine: everything that decides a row's bytes except the tokens
// before it. numerics are arguments that change rows. pid is the engine's process.
func Of(c launch.Command, numerics []string, config tierenv.Config, shape *llamastate.Shape, pid int, files *digests.Files) (map[string]string, error) {
	weights, err := files.Weights(c.Model())
	if err != nil {
		return nil, fmt.Errorf("identify the model's weights: %w", err)
	}
	adapters, err := files.All(c.Adapters())
	if err != nil {
		return nil, fmt.Errorf("identify an adapter: %w", err)
	}
	for _, path := range c.Adapters() {
		if err := wholly(path); err != nil {
			return nil, err
		}
	}
	engine, libraries, err := engineDigest(pid, files)
	if err != nil {
		return nil, fmt.Errorf("identify llama-server: %w", err)
	}
	kinds, err := devices("/", append(slices.Clone(libraries), drivers(pid)...), nvidiaSMI)
	if err != nil {
		return nil, err
	}
	numerics = slices.Concat(numerics, kinds, machine())
	if !onCPU(libraries) { // rows of a layer differ with its device
		numerics = append(numerics, c.Split()...)
	}
	form, err := json.Marshal(shape)
	if err != nil {
		return nil, err
	}
	return map[string]string{
		tierenv.KeySchema:     tierenv.Schema,
		tierenv.KeyWeights:    weights,
		tierenv.KeyAdapters:   strings.Join(adapters, ","),
		tierenv.KeyCacheType:  shape.CacheType(),
		tierenv.KeyShape:      hash(string(form)),
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

// engineDigest covers all code that computes: the program that the engine's process runs, even
// if another file has its name now, and the libraries that the process has mapped.
func engineDigest(pid int, files *digests.Files) (digest string, libraries []string, err error) {
	exe, libraries, err := code(pid)
	if err != nil {
		return "", nil, err
	}
	program, err := openProgram(pid, exe)
	if err != nil {
		return "", nil, err
	}
	defer program.Close()
	own, err := files.Opened(exe, program)
	if err != nil {
		return "", nil, err
	}
	all, err := files.All(libraries)
	if err != nil {
		return "", nil, err
	}
	if _, again, err := code(pid); err != nil || !slices.Equal(libraries, again) {
		return "", nil, errors.Join(errors.New("libraries were replaced while they were read; load the model again"), err)
	}
	return hash(strings.Join(append(all, own), "\n")), libraries, nil
}
