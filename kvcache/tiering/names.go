package tiering

import (
	"context"
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ollama/ollama/envconfig"
)

const (
	// namesEvery is the time after which names are read again: models come and go.
	namesEvery = time.Minute
	// namesMax bounds the manifests that are read, and manifestBytesMax the bytes of each.
	namesMax         = 4096
	manifestBytesMax = 1 << 20

	weightsMediaType = "application/vnd.ollama.image.model"
	usualHost        = "registry.ollama.ai/"
	usualNamespace   = "library/"
)

// modelNames has the names of Ollama's models for the collector, which may not wait for a disk.
type modelNames struct {
	byWeights atomic.Pointer[map[string]string]
}

// name is the name of the model with weights, the first of several, or "".
func (n *modelNames) name(weights string) string {
	if names := n.byWeights.Load(); names != nil {
		return (*names)[weights]
	}
	return ""
}

// refresh reads the names now and then, until ctx ends.
func (n *modelNames) refresh(ctx context.Context) {
	tick := time.NewTicker(namesEvery)
	defer tick.Stop()
	for {
		names := namesIn(filepath.Join(envconfig.Models(), "manifests"))
		n.byWeights.Store(&names)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// namesIn reads the manifests in a directory of Ollama's, which are HOST/NAMESPACE/MODEL/TAG.
// Manifests that cannot be read have no name here.
func namesIn(dir string) map[string]string {
	names := make(map[string]string)
	left := namesMax
	var walk func(at string, depth int)
	walk = func(at string, depth int) {
		entries, err := os.ReadDir(filepath.Join(dir, filepath.FromSlash(at)))
		if err != nil {
			return
		}
		for _, entry := range entries {
			name := path.Join(at, entry.Name())
			if depth < 3 {
				walk(name, depth+1)
				continue
			}
			if left--; left < 0 {
				return
			}
			weights, short := weightsIn(filepath.Join(dir, filepath.FromSlash(name))), shortName(name)
			if had, ok := names[weights]; weights != "" && (!ok || short < had) {
				names[weights] = short
			}
		}
	}
	walk("", 0)
	return names
}

// weightsIn is the SHA-256 of the weights that a manifest names, or "".
func weightsIn(manifest string) string {
	info, err := os.Stat(manifest)
	if err != nil || !info.Mode().IsRegular() || info.Size() > manifestBytesMax {
		return ""
	}
	text, err := os.ReadFile(manifest)
	if err != nil {
		return ""
	}
	var m struct {
		Layers []struct{ MediaType, Digest string }
	}
	if json.Unmarshal(text, &m) != nil {
		return ""
	}
	for _, layer := range m.Layers {
		if digest, ok := strings.CutPrefix(layer.Digest, "sha256:"); ok && layer.MediaType == weightsMediaType {
			return digest
		}
	}
	return ""
}

// shortName is the name of a model as Ollama shows it.
func shortName(manifest string) string {
	name, usual := strings.CutPrefix(manifest, usualHost)
	if usual {
		name = strings.TrimPrefix(name, usualNamespace)
	}
	return path.Dir(name) + ":" + path.Base(name)
}
