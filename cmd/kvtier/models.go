package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ollama/ollama/envconfig"
	"github.com/ollama/ollama/manifest"
	"github.com/ollama/ollama/types/model"

	"github.com/kvtier/kvtier/internal/tierenv"
)

// weightsMediaType is the media type of the layer with a model's weights.
const weightsMediaType = "application/vnd.ollama.image.model"

// maxModelManifestBytes bounds the read of a model's manifest.
const maxModelManifestBytes = 1 << 20

// modelNames maps the digest of weights to the sorted names of the models with these
// weights.
type modelNames map[string][]string

// models returns the directory of Ollama's models, "" if there is none.
func (a *app) models() string {
	if a.modelsDir != "" {
		return a.modelsDir
	}
	if _, err := os.UserHomeDir(); err != nil && envconfig.Var("OLLAMA_MODELS") == "" {
		return "" // a service without a home
	}
	return envconfig.Models()
}

// names reads the names of models. Without readable names, output has digests.
func (a *app) names() modelNames {
	names := make(modelNames)
	dir := a.models()
	if dir == "" {
		return names
	}
	root := filepath.Join(dir, "manifests")
	paths, err := filepath.Glob(filepath.Join(globEscape(root), "*", "*", "*", "*"))
	if err != nil {
		return names
	}
	for _, path := range paths {
		rel, err := filepath.Rel(root, path)
		if err != nil {
			continue
		}
		name := model.ParseNameFromFilepath(rel)
		digest, err := weightsOf(path)
		if err != nil || digest == "" || !name.IsValid() {
			continue
		}
		names[digest] = append(names[digest], name.DisplayShortest())
	}
	for _, list := range names {
		slices.Sort(list)
	}
	return names
}

// globEscape quotes a directory's name for a glob pattern.
func globEscape(path string) string {
	if filepath.Separator == '\\' {
		return path // Windows has no escapes in patterns
	}
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// weightsOf returns the digest of the weights in a model's manifest, "" if it names none.
func weightsOf(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxModelManifestBytes {
		return "", errors.Join(err, fs.ErrInvalid)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var m manifest.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return "", fmt.Errorf("parse %s: %w", path, err)
	}
	for _, layer := range m.Layers {
		if digest, ok := strings.CutPrefix(layer.Digest, "sha256:"); ok && layer.MediaType == weightsMediaType {
			return digest, nil
		}
	}
	return "", nil
}

// blob returns the path of weights in Ollama's model store, "" if the store lacks them.
func (a *app) blob(weights string) string {
	dir := a.models()
	if dir == "" || weights == "" {
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
	switch names := n[weights]; {
	case weights == "":
		return "unknown"
	case len(names) > 0:
		return strings.Join(names, ", ")
	}
	return "weights " + short(weights)
}

// has reports whether weights have the given name. As in Ollama, the tag latest, the
// registry and its library may be left out, and case does not matter.
func (n modelNames) has(weights, name string) bool {
	full := model.ParseName(name)
	return full.IsValid() && slices.ContainsFunc(n[weights], func(own string) bool {
		return model.ParseName(own).EqualFold(full)
	})
}
