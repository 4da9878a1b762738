package ollamasrc

import (
	"bytes"
	"fmt"
	goversion "go/version"
	"os"
	"path/filepath"

	"golang.org/x/mod/modfile"
)

// writeWorkspace writes the go.work that lets Ollama's packages import kvtier's. Neither
// go.mod is edited: Ollama's go.mod changes in every second release, so a patch of it would
// rarely apply.
func writeWorkspace(lay Layout) error {
	version, err := newerGo(filepath.Join(lay.Src(), "go.mod"), filepath.Join(lay.Root, "go.mod"))
	if err != nil {
		return fmt.Errorf("choosing the Go version of the workspace: %w", err)
	}
	work := &modfile.WorkFile{Syntax: &modfile.FileSyntax{}}
	if err := work.AddGoStmt(version); err != nil {
		return err
	}
	for _, dir := range []string{lay.Src(), lay.Root} {
		use, err := workspacePath(lay.Dir, dir)
		if err != nil {
			return err
		}
		if err := work.AddUse(use, ""); err != nil {
			return err
		}
	}
	return writeIfChanged(lay.GoWork(), modfile.Format(work.Syntax))
}

// workspacePath is a relative path, so that a checkout can be moved with its build.
func workspacePath(from, to string) (string, error) {
	rel, err := filepath.Rel(from, to)
	if err != nil {
		// Another volume has no relative path.
		return filepath.ToSlash(to), nil
	}
	rel = filepath.ToSlash(rel)
	if filepath.IsLocal(rel) {
		rel = "./" + rel
	}
	return rel, nil
}

// newerGo returns the newest version in the go lines of files.
func newerGo(paths ...string) (string, error) {
	newest := ""
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		mod, err := modfile.ParseLax(path, data, nil)
		if err != nil {
			return "", err
		}
		if mod.Go != nil && goversion.Compare("go"+mod.Go.Version, "go"+newest) > 0 {
			newest = mod.Go.Version
		}
	}
	if newest == "" {
		return "", fmt.Errorf("no go line in %v", paths)
	}
	return newest, nil
}

// writeIfChanged keeps the time of a file whose content is the same.
func writeIfChanged(path string, data []byte) error {
	old, err := os.ReadFile(path)
	if err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
