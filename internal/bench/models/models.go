// Package models writes the models that the benchmarks measure: with random weights, or
// trained. It is apart from package lab, so that a program which measures the user's model contains no
// test model.
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
	return model(dir, name, gguf, testmodel.Modelfile(gguf)), testmodel.Write(gguf, shape)
}

// Trained writes the trained model into dir, see package trained.
func Trained(dir, name string) (lab.Model, error) {
	gguf, err := trained.Write(dir)
	return model(dir, name, gguf, trained.Modelfile(gguf)), err
}

func model(dir, name, gguf, modelfile string) lab.Model {
	return lab.Model{Name: name, GGUF: gguf, Modelfile: modelfile, Models: filepath.Join(dir, "models")}
}
