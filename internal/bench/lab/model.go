package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// Model is a model that a lab can serve.
type Model struct {
	Name      string
	GGUF      string // the model's file; empty when Models has the model
	Modelfile string // settings beside the file's own; may be empty
	Models    string // OLLAMA_MODELS, which has the model or gets it
}

// RandomModel writes a model of the given shape into dir. Servers with the same Model share
// the blob.
func RandomModel(dir, name string, shape testmodel.Shape) (Model, error) {
	gguf := filepath.Join(dir, name+".gguf")
	if err := testmodel.Write(gguf, shape); err != nil {
		return Model{}, err
	}
	return Model{Name: name, GGUF: gguf, Modelfile: testmodel.Modelfile(gguf), Models: filepath.Join(dir, "models")}, nil
}

// create creates the model on a server that does not have it.
func (m Model) create(ctx context.Context, s *ollamatest.Server) error {
	if m.GGUF == "" {
		return nil
	}
	if _, err := os.Stat(m.GGUF); err != nil {
		return fmt.Errorf("opening the model file: %w", err)
	}
	return s.CreateModel(ctx, m.Name, m.GGUF, m.Modelfile)
}

// RecallModel writes the recall model into dir, see [testmodel.Recall].
func RecallModel(dir, name string) (Model, error) {
	gguf := filepath.Join(dir, name+".gguf")
	if err := testmodel.WriteRecall(gguf, testmodel.Recall{}); err != nil {
		return Model{}, err
	}
	return Model{Name: name, GGUF: gguf, Modelfile: testmodel.Modelfile(gguf), Models: filepath.Join(dir, "models")}, nil
}
