// Package identity names everything that decides the bytes of rows besides tokens: the weights and
// adapters, the program and its libraries, the devices, the arguments. Pages of one identity are
// never restored under another one. [ReadModel] reads the model's part from its file.
package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
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
	engine, p, err := engineDigest(pid, files)
	if err != nil {
		return nil, fmt.Errorf("identify llama-server: %w", err)
	}
	kinds, err := devices("/", slices.Concat(p.libraries, p.drivers), nvidiaSMI)
	if err != nil {
		return nil, err
	}
	numerics = slices.Concat(numerics, kinds, p.system)
	if !onCPU(p.libraries) { // rows of a layer differ with its device
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

// program is the program of a process, and all else that computes for it.
type program struct {
	name, file string   // the file is that which runs, even if another one has its name now
	libraries  []string // that it has mapped, or that lie beside it
	drivers    []string // libraries of GPUs' drivers, which also a static program has; known on Linux alone
	system     []string // code and devices that are in no files
}

// engineDigest covers all code that computes: the program that the engine's process runs, and the libraries
// that the process has mapped.
func engineDigest(pid int, files *digests.Files) (digest string, p program, err error) {
	if p, err = code(pid); err != nil {
		return "", p, err
	}
	file, err := os.Open(p.file)
	if err != nil {
		return "", p, err
	}
	defer file.Close()
	own, err := files.Opened(p.name, file)
	if err != nil {
		return "", p, err
	}
	all, err := files.All(p.libraries)
	if err != nil {
		return "", p, err
	}
	again, err := code(pid)
	if err != nil || !slices.Equal(p.libraries, again.libraries) {
		return "", p, errors.Join(errors.New("libraries were replaced while they were read; load the model again"), err)
	}
	return hash(strings.Join(append(all, own), "\n")), again, nil
}
