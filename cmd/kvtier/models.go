package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// modelNames are the names of models, as output has them.
type modelNames struct{ modelnames.Names }

// models returns the directory of Ollama's models, "" if there is none.
func (a *app) models() string {
	if a.modelsDir != "" {
		return a.modelsDir
	}
	return modelnames.Dir()
}

// names reads the names of models. Without readable names, output has digests, and so it does
// where the models' disk does not answer in time.
func (a *app) names() modelNames { return a.namesIn(a.models()) }

// namesIn is names for another directory of models.
func (a *app) namesIn(dir string) modelNames {
	read := func() (modelnames.Names, error) { return modelnames.Read(dir), nil }
	if a.timeout <= 0 {
		names, _ := read()
		return modelNames{names}
	}
	names, _ := steady.Do(context.Background(), &a.modelsDisk, steady.Wait{Most: a.timeout}, read, func(modelnames.Names, error) {})
	return modelNames{names}
}

// blob returns the path of weights in Ollama's model store, "" if the store lacks them.
func (a *app) blob(weights string) string {
	dir := a.models()
	if dir == "" || weights == "" || a.modelsDisk.Hangs() {
		return ""
	}
	path := filepath.Join(dir, "blobs", "sha256-"+weights)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return path
}

// digits is the number of digits of a digest in output, as in ollama list.
const digits = 12

func short(digest string) string { return digest[:min(len(digest), digits)] }

// of names the model of an identity: by its names, or else by its digest, or as unknown.
func (n modelNames) of(identity map[string]string) string {
	weights := identity[tierenv.KeyWeights]
	switch names := n.Names[weights]; {
	case weights == "":
		return "unknown"
	case len(names) > 0:
		return strings.Join(names, ", ")
	}
	return "weights " + short(weights)
}
