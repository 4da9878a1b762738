package models

import (
	"path/filepath"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/internal/testmodel/trained"
)

// Random writes a model of the given shape into dir. Servers with the same Model share
// the blob.
func Random(dir, name string, shape testmodel.Shape) (lab.Model, error) {
	gguf := filepath.Join(dir, name+".gguf")
	if err := testmodel.Write(gguf, shape); err != nil {
		return lab.Model{}, err
	}
	return lab.Model{Name: name, GGUF: gguf, Modelfile: testmodel.Modelfile(gguf), Models: filepath.Join(dir, "models")}, nil
}

// Recall writes the recall model into dir, see [testmodel.Recall].
func Recall(dir, name string) (lab.Model, error) {
	gguf := filepath.Join(dir, name+".gguf")
	if err := testmodel.WriteRecall(gguf, testmodel.Recall{}); err != nil {
		return lab.Model{}, err
	}
	return lab.Model{Name: name, GGUF: gguf, Modelfile: testmodel.Modelfile(gguf), Models: filepath.Join(dir, "models")}, nil
}

// Trained writes the trained model into dir, see package trained.
func Trained(dir, name string) (lab.Model, error) {
	gguf, err := trained.Write(dir)
	if err != nil {
		return lab.Model{}, err
	}
	return lab.Model{Name: name, GGUF: gguf, Modelfile: trained.Modelfile(gguf), Models: filepath.Join(dir, "models")}, nil
}
