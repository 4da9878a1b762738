// Package modelnames finds the names of models in Ollama's model store, by their weights.
package modelnames

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ollama/ollama/envconfig"
	"github.com/ollama/ollama/manifest"
	"github.com/ollama/ollama/types/model"
)

// weightsMediaType is the media type of the layer with a model's weights.
const weightsMediaType = "application/vnd.ollama.image.model"

// Bounds of a store, whose content is not trusted.
const (
	manifestBytesMax = 1 << 20
	manifestsMax     = 1 << 14
)

// Names maps the SHA-256 of weights, in hexadecimal, to the sorted names of the models with
// these weights.
type Names map[string][]string

// Dir returns the directory of Ollama's models, "" if there is none.
func Dir() string {
	if _, err := os.UserHomeDir(); err != nil && envconfig.Var("OLLAMA_MODELS") == "" {
		return "" // a service without a home
	}
	return envconfig.Models()
}

// Own reads the names of the models in Ollama's own directory.
func Own() Names { return Read(Dir()) }

// Read reads the names of the models in a directory. Models without a readable manifest have
// none.
func Read(dir string) Names {
	names := make(Names)
	if dir == "" {
		return names
	}
	root := filepath.Join(dir, "manifests")
	paths, _ := fs.Glob(os.DirFS(root), "*/*/*/*") // the pattern is good
	for _, path := range paths[:min(len(paths), manifestsMax)] {
		path = filepath.FromSlash(path)
		name := model.ParseNameFromFilepath(path)
		digest, err := weightsOf(filepath.Join(root, path))
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

// weightsOf returns the digest of the weights in a model's manifest, "" if it names none.
func weightsOf(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO is not waited for
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > manifestBytesMax {
		return "", errors.Join(err, fs.ErrInvalid)
	}
	text, err := io.ReadAll(io.LimitReader(f, manifestBytesMax))
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

// Has reports whether weights have the given name. As in Ollama, the tag latest, the registry and
// its library may be left out, and case does not matter.
func (n Names) Has(weights, name string) bool {
	full := model.ParseName(name)
	return full.IsValid() && slices.ContainsFunc(n[weights], func(own string) bool {
		return model.ParseName(own).EqualFold(full)
	})
}

// Cache has names for callers that may not wait for a disk. The zero Cache has none.
type Cache struct{ names atomic.Pointer[Names] }

// every is the time after which names are read again: models come and go, and whoever has just made
// one looks for its name.
const every = 10 * time.Second

// Refresh reads names, again and again, until ctx ends. A read that hangs then is left behind.
func (c *Cache) Refresh(ctx context.Context, read func() Names) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		done := make(chan Names, 1)
		go func() { done <- read() }()
		select {
		case <-ctx.Done():
			return
		case names := <-done:
			c.names.Store(&names)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Name is the first name of weights, or "".
func (c *Cache) Name(weights string) string {
	if names := c.names.Load(); names != nil && len((*names)[weights]) > 0 {
		return (*names)[weights][0]
	}
	return ""
}
