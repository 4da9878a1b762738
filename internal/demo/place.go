package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/internal/ollamasrc"
)

// place holds the directories of a demo.
type place struct {
	repository string
	dir        string // temporary: the model and the server's own files
	root       string // the pages
}

// newPlace makes the temporary folder in the build directory: on many systems /tmp is in
// memory.
func newPlace(s settings) (place, error) {
	wd, err := os.Getwd()
	if err != nil {
		return place{}, fmt.Errorf("finding the working directory: %w", err)
	}
	repository, err := ollamasrc.FindRoot(wd)
	if err != nil {
		return place{}, err
	}
	build := filepath.Join(repository, "build")
	if err := os.MkdirAll(build, 0o755); err != nil {
		return place{}, fmt.Errorf("making the build directory: %w", err)
	}
	p := place{repository: repository}
	if p.dir, err = os.MkdirTemp(build, "demo-"); err != nil {
		return place{}, fmt.Errorf("making a folder for the demo: %w", err)
	}
	p.root = filepath.Join(p.dir, "pages")
	if s.root != "" {
		if p.root, err = filepath.Abs(s.root); err != nil {
			return place{}, fmt.Errorf("finding the absolute path of %s: %w", s.root, err)
		}
	}
	return p, nil
}

func (p place) remove() error {
	if err := os.RemoveAll(p.dir); err != nil {
		return fmt.Errorf("removing the demo's folder: %w", err)
	}
	return nil
}
