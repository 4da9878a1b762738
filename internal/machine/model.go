package machine

import (
	"encoding/json"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/env"
)

// Model is a model in Ollama's store.
type Model struct {
	Name, Architecture string
	Adapter            bool
}

// modelsMax bounds the models that are looked at; each costs the read of two files.
const modelsMax = 256

// ModelDir is the store of models of a server with some variables, "" if it is not known.
func ModelDir(set map[string]string, home string) string {
	dir := env.Trim(set["OLLAMA_MODELS"])
	if dir == "" && home != "" {
		dir = filepath.Join(home, ".ollama", "models")
	}
	return dir
}

// ModelDirs are the stores of the servers on this machine.
func ModelDirs(servers []Server) (dirs []string) {
	for _, o := range servers {
		dir := ModelDir(o.Variables(), o.Home())
		if o.Kind != ByDocker && dir != "" && !slices.Contains(dirs, dir) { // a container's paths are its own
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// Models reads the manifests in stores, and the architectures of the models.
func Models(s System, dirs []string) []Model {
	var all []Model
	for _, dir := range dirs {
		for _, rel := range manifests(s, filepath.Join(dir, "manifests"), 4) {
			if len(all) == modelsMax {
				return all
			}
			if m, ok := readModel(s, dir, rel); ok {
				all = append(all, m)
			}
		}
	}
	return all
}

// manifests lists paths of four elements below a directory: registry, namespace, model, tag.
func manifests(s System, dir string, depth int) []string {
	names, _ := s.List(dir, EntriesMax)
	if depth == 1 {
		return names
	}
	var all []string
	for _, name := range names {
		for _, rest := range manifests(s, filepath.Join(dir, name), depth-1) {
			if all = append(all, path.Join(name, rest)); len(all) == modelsMax {
				return all
			}
		}
	}
	return all
}

func readModel(s System, dir, rel string) (m Model, ok bool) {
	text, err := s.Read(filepath.Join(dir, "manifests", filepath.FromSlash(rel)), TextMax)
	var manifest struct {
		Layers []struct{ MediaType, Digest string }
	}
	if err != nil || json.Unmarshal(text, &manifest) != nil {
		return m, false
	}
	parts := strings.Split(rel, "/")
	m.Name = parts[2] + ":" + parts[3]
	if parts[1] != "library" {
		m.Name = parts[1] + "/" + m.Name
	}
	for _, layer := range manifest.Layers {
		digest, sha := strings.CutPrefix(layer.Digest, "sha256:")
		switch layer.MediaType {
		case "application/vnd.ollama.image.adapter":
			m.Adapter = true
		case "application/vnd.ollama.image.model":
			if sha && !strings.ContainsAny(digest, `/\`) {
				m.Architecture, err = s.Model(filepath.Join(dir, "blobs", "sha256-"+digest))
				ok = err == nil
			}
		}
	}
	return m, ok
}
