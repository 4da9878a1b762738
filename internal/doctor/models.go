package doctor

import (
	"encoding/json"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// model is a model in Ollama's store.
type model struct {
	name, architecture string
	adapter            bool
}

// modelsMax bounds the models that are looked at; each costs the read of two files.
const modelsMax = 256

// modelDirs are the stores of the servers, or the one of this program's user.
func (s *scene) modelDirs() []string {
	if s.opt.Models != "" {
		return []string{s.opt.Models}
	}
	var dirs []string
	add := func(set map[string]string, home string) {
		dir := value(set, modelsVar)
		if dir == "" && home != "" {
			dir = filepath.Join(home, ".ollama", "models")
		}
		if dir != "" && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	for _, o := range s.servers {
		if o.kind == byDocker {
			continue // its paths are those of the container
		}
		home := o.variables()["HOME"]
		if home == "" {
			home = o.user.Home
		}
		add(o.variables(), home)
	}
	if len(dirs) == 0 {
		add(s.shell, s.user.Home)
	}
	return dirs
}

// modelsIn reads the manifests in stores, and the architectures of the models.
func modelsIn(e Environment, dirs []string) []model {
	var all []model
	for _, dir := range dirs {
		for _, rel := range manifests(e, filepath.Join(dir, "manifests"), 4) {
			if len(all) == modelsMax {
				return all
			}
			if m, ok := readModel(e, dir, rel); ok {
				all = append(all, m)
			}
		}
	}
	return all
}

// manifests lists paths of four elements below a directory: registry, namespace, model, tag.
func manifests(e Environment, dir string, depth int) []string {
	names, _ := e.List(dir, entriesMax)
	if depth == 1 {
		return names
	}
	var all []string
	for _, name := range names {
		for _, rest := range manifests(e, filepath.Join(dir, name), depth-1) {
			if all = append(all, path.Join(name, rest)); len(all) == modelsMax {
				return all
			}
		}
	}
	return all
}

func readModel(e Environment, dir, rel string) (m model, ok bool) {
	text, err := e.Read(filepath.Join(dir, "manifests", filepath.FromSlash(rel)), textMax)
	var manifest struct {
		Layers []struct{ MediaType, Digest string }
	}
	if err != nil || json.Unmarshal(text, &manifest) != nil {
		return m, false
	}
	parts := strings.Split(rel, "/")
	m.name = parts[2] + ":" + parts[3]
	if parts[1] != "library" {
		m.name = parts[1] + "/" + m.name
	}
	for _, layer := range manifest.Layers {
		digest, sha := strings.CutPrefix(layer.Digest, "sha256:")
		switch layer.MediaType {
		case "application/vnd.ollama.image.adapter":
			m.adapter = true
		case "application/vnd.ollama.image.model":
			if sha && !strings.ContainsAny(digest, `/\`) {
				m.architecture, err = e.Model(filepath.Join(dir, "blobs", "sha256-"+digest))
				ok = err == nil
			}
		}
	}
	return m, ok
}

// tieredArchitectures are those of kvcache/tiering; a test compares both.
var tieredArchitectures = []string{
	"deepseek2", "gemma3", "gemma3n", "gemma4", "glm4moelite", "gpt-oss", "gptoss", "lfm2", "llama", "llama4", "mistral3", "mllama",
	"nemotron_h", "olmo3", "qwen2", "qwen3", "qwen35", "qwen3moe", "qwen3next",
}
