package trained

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

//go:embed trained.gguf
var file []byte

//go:embed heldout.txt
var heldOut string

// FileBytesMax bounds the size of the file, which is a part of the repository.
const FileBytesMax = 8_000_000

// ContextTokens is the longest context of the training.
const ContextTokens = 4608

// name is the name of the model's file.
const name = "trained.gguf"

// Write writes the model's file into a folder, and returns the file's path.
func Write(dir string) (string, error) {
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, file, 0o644); err != nil {
		return "", fmt.Errorf("writing the trained model: %w", err)
	}
	return path, nil
}

// Path writes the model's file for the length of a test, and returns the file's path.
func Path(t testing.TB) string {
	t.Helper()
	path, err := Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Modelfile returns an Ollama Modelfile for the file at path. The template passes a prompt
// through, and the context is that of the training.
func Modelfile(path string) string {
	return fmt.Sprintf("FROM %s\nTEMPLATE \"{{ .Prompt }}\"\nPARAMETER num_ctx %d\n", path, ContextTokens)
}

// Prose is some 6,000 tokens of text that is no part of the training text: heldout.txt
// without its table.
func Prose() string {
	_, prose, _ := strings.Cut(heldOut, "\n\n")
	return strings.TrimLeft(prose, "\n")
}
