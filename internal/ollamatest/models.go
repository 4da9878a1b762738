package ollamatest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ollama/ollama/api"
	"github.com/ollama/ollama/parser"
)

// CreateModel makes a model from a GGUF file, as "ollama create" does. The file replaces the
// Modelfile's FROM lines; the Modelfile may be empty.
func (s *Server) CreateModel(ctx context.Context, name, ggufPath, modelfile string) error {
	request, err := createRequest(ggufPath, modelfile)
	if err != nil {
		return fmt.Errorf("creating model %s: %w", name, err)
	}
	request.Model = name
	client := s.API()
	for file, digest := range request.Files {
		if err := uploadBlob(ctx, client, ggufPath, digest); err != nil {
			return fmt.Errorf("creating model %s: uploading %s: %w", name, file, err)
		}
	}
	done := func(api.ProgressResponse) error { return nil }
	if err := client.Create(ctx, request, done); err != nil {
		return fmt.Errorf("creating model %s from %s: %w", name, ggufPath, err)
	}
	return nil
}

// createRequest turns a Modelfile into a request of the API, in which files are named
// without folders.
func createRequest(ggufPath, modelfile string) (*api.CreateRequest, error) {
	gguf, err := filepath.Abs(ggufPath)
	if err != nil {
		return nil, fmt.Errorf("finding the absolute path of %s: %w", ggufPath, err)
	}
	if _, err := os.Stat(gguf); err != nil {
		return nil, fmt.Errorf("looking for the model file: %w", err)
	}
	parsed, err := parser.ParseFile(strings.NewReader("FROM " + gguf + "\n" + modelfile))
	if err != nil {
		return nil, fmt.Errorf("reading the Modelfile: %w", err)
	}
	first := true
	parsed.Commands = slices.DeleteFunc(parsed.Commands, func(c parser.Command) bool {
		repeated := c.Name == "model" && !first
		first = first && c.Name != "model"
		return repeated
	})
	request, err := parsed.CreateRequest("")
	if err != nil {
		return nil, fmt.Errorf("reading the Modelfile: %w", err)
	}
	request.Files = map[string]string{filepath.Base(gguf): request.Files[gguf]}
	return request, nil
}

func uploadBlob(ctx context.Context, client *api.Client, path, digest string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return client.CreateBlob(ctx, digest, f)
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
