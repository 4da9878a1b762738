package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/ollama/ollama/types/model"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/models"
)

// demoModel is the name of a model that the demo creates.
const demoModel = "kvtier-demo"

// talkativeness bounds the answers of a model that seldom ends an answer.
const talkativeness = "PARAMETER num_predict 128\n"

// chooseModel makes a model available below dir: the small trained one, a GGUF file, or a
// model of the user's, as name selects.
func chooseModel(name, dir string) (lab.Model, error) {
	if name == "" {
		m, err := models.Trained(dir, demoModel)
		m.Modelfile += talkativeness
		return m, err
	}
	models := filepath.Join(dir, "models")
	info, err := os.Stat(name)
	switch {
	case err == nil && info.Mode().IsRegular():
		return lab.Model{Name: demoModel, GGUF: name, Models: models}, nil
	case strings.HasSuffix(strings.ToLower(name), ".gguf"):
		return lab.Model{}, fmt.Errorf("opening the model file: %w", err)
	}
	return borrowModel(name, models)
}

// borrowModel makes a model of the user's Ollama available in another store by links to its
// files, so that the demo changes no file of the user's.
func borrowModel(name, models string) (lab.Model, error) {
	parsed := model.ParseName(name)
	if !parsed.IsValid() {
		return lab.Model{}, fmt.Errorf("MODEL=%s is neither a GGUF file nor the name of a model", name)
	}
	stores := modelStores()
	for _, store := range stores {
		manifest, err := os.ReadFile(filepath.Join(store, "manifests", parsed.Filepath()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return lab.Model{}, fmt.Errorf("reading the manifest of %s: %w; run the demo as a user who may, or copy the model's GGUF file and name that", name, err)
		}
		if err := linkModel(store, models, parsed, manifest); err != nil {
			return lab.Model{}, err
		}
		return lab.Model{Name: name, Models: models}, nil
	}
	return lab.Model{}, fmt.Errorf("there is no model %s in %s; get it with `ollama pull %s`, or name the store with OLLAMA_MODELS",
		name, strings.Join(stores, " or "), name)
}

// modelStores are the possible stores of Ollama's models: OLLAMA_MODELS, the user's own, and
// that of the system service.
func modelStores() []string {
	if store := os.Getenv("OLLAMA_MODELS"); store != "" {
		return []string{store}
	}
	var stores []string
	if home, err := os.UserHomeDir(); err == nil {
		stores = append(stores, filepath.Join(home, ".ollama", "models"))
	}
	if runtime.GOOS == "linux" {
		stores = append(stores, "/usr/share/ollama/.ollama/models")
	}
	return stores
}

// linkModel copies a manifest from one store to another and links its blobs.
func linkModel(from, to string, name model.Name, manifest []byte) error {
	type layer struct {
		Digest string `json:"digest"`
	}
	var content struct {
		Config layer   `json:"config"`
		Layers []layer `json:"layers"`
	}
	if err := json.Unmarshal(manifest, &content); err != nil {
		return fmt.Errorf("reading the manifest of %s: %w", name, err)
	}
	blobs := filepath.Join(to, "blobs")
	path := filepath.Join(to, "manifests", name.Filepath())
	for _, dir := range []string{blobs, filepath.Dir(path)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("making a model store for the demo: %w", err)
		}
	}
	for _, l := range append(content.Layers, content.Config) {
		blob := strings.Replace(l.Digest, ":", "-", 1)
		source, err := filepath.Abs(filepath.Join(from, "blobs", blob))
		if err == nil {
			_, err = os.Stat(source)
		}
		if err == nil {
			err = os.Symlink(source, filepath.Join(blobs, blob))
		}
		if err != nil && !errors.Is(err, fs.ErrExist) { // a model may have a layer twice
			return fmt.Errorf("linking a part of %s: %w", name, err)
		}
	}
	if err := os.WriteFile(path, manifest, 0o600); err != nil {
		return fmt.Errorf("writing the manifest of %s: %w", name, err)
	}
	return nil
}
