package lab

import (
	"context"
	"fmt"
	"os"

	"github.com/kvtier/kvtier/internal/ollamatest"
)

// Model is a model that a lab can serve.
type Model struct {
	Name      string
	GGUF      string // the model's file; empty when Models has the model
	Modelfile string // settings beside the file's own; may be empty
	Models    string // OLLAMA_MODELS, which has the model or gets it
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
