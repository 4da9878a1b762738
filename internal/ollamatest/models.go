package ollamatest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/ollama/ollama/api"
)

// fromLine matches the lines of a Modelfile that name its model.
var fromLine = regexp.MustCompile(`(?mi)^FROM\s.*\n?`)

// CreateModel makes a model from a GGUF file with "ollama create". The file replaces the
// Modelfile's FROM lines; the Modelfile may be empty.
func (s *Server) CreateModel(ctx context.Context, name, ggufPath, modelfile string) error {
	gguf, err := filepath.Abs(ggufPath)
	if err != nil {
		return fmt.Errorf("finding the absolute path of %s: %w", ggufPath, err)
	}
	file, err := os.CreateTemp(s.Home(), "Modelfile-")
	if err != nil {
		return fmt.Errorf("writing a Modelfile: %w", err)
	}
	defer os.Remove(file.Name())
	_, err = fmt.Fprintf(file, "FROM %s\n%s", gguf, fromLine.ReplaceAllString(modelfile, ""))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("writing a Modelfile: %w", err)
	}
	if out, err := s.Command(ctx, "create", name, "-f", file.Name()).CombinedOutput(); err != nil {
		return fmt.Errorf("creating model %s from %s: %w: %s", name, ggufPath, err, out)
	}
	return nil
}

// PS lists the loaded models, as "ollama ps" does.
func (s *Server) PS(ctx context.Context) ([]api.ProcessModelResponse, error) {
	response, err := s.API().ListRunning(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing loaded models: %w", err)
	}
	return response.Models, nil
}

// Unload makes the server drop the model, and waits until the model is not listed and its
// runner is gone. Unloading a model that is not loaded does nothing.
func (s *Server) Unload(ctx context.Context, model string) error {
	request := &api.GenerateRequest{Model: model, KeepAlive: KeepAlive(0)}
	if err := s.API().Generate(ctx, request, func(api.GenerateResponse) error { return nil }); err != nil {
		return fmt.Errorf("unloading model %s: %w", model, err)
	}
	return s.WaitUnloaded(ctx, model)
}

// WaitUnloaded waits until a model that is being unloaded is not listed and its runner is gone.
func (s *Server) WaitUnloaded(ctx context.Context, model string) error {
	return poll(ctx, "model "+model+" to be unloaded", func() (bool, error) {
		models, err := s.PS(ctx)
		var status api.StatusError
		if errors.As(err, &status) && status.StatusCode == http.StatusInternalServerError {
			return false, nil // Ollama reads its list without a lock and may see a half unloaded model
		}
		if err != nil {
			return false, err
		}
		runners, err := s.Runners()
		listed := slices.ContainsFunc(models, func(m api.ProcessModelResponse) bool {
			return m.Name == model || m.Name == model+":latest"
		})
		return !listed && len(runners) <= len(models), err
	})
}
