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
	metadata, tensors := contents(s)
	return WriteFile(path, metadata, tensors)
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

// contents returns the metadata and the tensors of the file.
func contents(s Shape) (ggml.KV, []*ggml.Tensor) {
	l := architectures[s.Arch].of(s)
	tensors := make([]*ggml.Tensor, len(l.matrices))
	for i, m := range l.matrices {
		tensors[i] = m.tensor(s.Seed)
	}
	return fileMetadata(s, fmt.Sprintf("kvtier test model, random weights, seed %d", s.Seed), l.metadata), tensors
}

// fileMetadata is all metadata of a file: the model's name, the tokenizer's metadata, and
// the architecture's, which may replace the tokenizer's or, with nil, remove it.
func fileMetadata(s Shape, name string, architecture ggml.KV) ggml.KV {
	metadata := ggml.KV{
		"general.architecture": architectures[s.Arch].inFile(s),
		"general.name":         name,
		"general.file_type":    ggml.FileTypeF16,
	}
	maps.Copy(metadata, newVocabulary(s.Vocab).metadata())
	maps.Copy(metadata, architecture)
	maps.DeleteFunc(metadata, func(_ string, value any) bool { return value == nil })
	return metadata
}

// jinjaTemplate is ChatML in the spelling by which Ollama recognizes the template in GGUF
// files. The spelling must not change.
const jinjaTemplate = `{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// Modelfile returns an Ollama Modelfile for the GGUF file at ggufPath: a ChatML
// template and stop words. Ollama takes a relative path from the Modelfile's
// own folder.
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
