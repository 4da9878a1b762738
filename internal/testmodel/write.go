package testmodel

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/ollama/ollama/fs/ggml"
)

// Write writes the model as a GGUF file. The complete file is renamed to path and replaces
// an existing file; it is not synced to disk.
func Write(path string, s Shape) error {
	s = s.WithDefaults()
	if err := s.validate(); err != nil {
		return err
	}
	return writeLayout(path, s, fmt.Sprintf("kvtier test model, random weights, seed %d", s.Seed), architectures[s.Arch].of(s))
}

// writeLayout writes a model of a name. Its layout may replace the tokenizer's metadata or, with nil,
// remove it.
func writeLayout(path string, s Shape, name string, l layout) error {
	metadata := newVocabulary(s.Vocab).metadata()
	if s.Infill {
		for i, part := range infillNames {
			metadata["tokenizer.ggml.fim_"+part+"_token_id"] = uint32(s.Vocab - specialTokens - 1 - i)
		}
	}
	metadata["general.architecture"] = architectures[s.Arch].inFile(s)
	maps.Copy(metadata, l.metadata)
	maps.DeleteFunc(metadata, func(_ string, value any) bool { return value == nil })
	return layout{metadata, l.matrices}.write(path, name, s.Seed)
}

// write writes a file of a name, with nothing but the layout.
func (l layout) write(path, name string, seed int64) error {
	l.metadata["general.name"] = name
	l.metadata["general.file_type"] = ggml.FileTypeF16
	var tensors []*ggml.Tensor
	for _, m := range l.matrices {
		tensors = append(tensors, m.tensor(seed))
	}
	return WriteFile(path, l.metadata, tensors)
}

// Head writes a GGUF file of metadata alone, and returns its path.
func Head(t testing.TB, metadata ggml.KV) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := WriteFile(path, metadata, nil); err != nil {
		t.Fatal(err)
	}
	return path
}

// WriteFile writes any GGUF file, as [Write] does.
func WriteFile(path string, metadata ggml.KV, tensors []*ggml.Tensor) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err == nil {
		err = errors.Join(ggml.WriteGGUF(f, metadata, tensors), f.Chmod(0o644), f.Close())
		if err == nil {
			err = os.Rename(f.Name(), path)
		}
		if err != nil {
			os.Remove(f.Name())
		}
	}
	if err != nil {
		return fmt.Errorf("writing model %s: %w", path, err)
	}
	return nil
}

// jinjaTemplate is ChatML in the spelling by which Ollama recognizes the template in GGUF
// files. The spelling must not change.
const jinjaTemplate = `{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// Modelfile returns an Ollama Modelfile for the GGUF file at ggufPath: a ChatML template and stop words.
// Ollama takes a relative path from the Modelfile's own folder.
func Modelfile(ggufPath string) string {
	return fmt.Sprintf(`FROM %s
TEMPLATE """{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
"""
PARAMETER stop %s
PARAMETER stop %s
`, ggufPath, ImStart, ImEnd)
}
