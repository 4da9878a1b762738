package ollamasrc

import (
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
	text := "go " + version + "\n\nuse (\n"
	for _, dir := range []string{lay.Src(), lay.Root} {
		text += "\t" + modfile.AutoQuote(workspacePath(lay.Dir, dir)) + "\n"
	}
	return os.WriteFile(lay.GoWork(), []byte(text+")\n"), 0o644)
}

// workspacePath is a relative path, so that a checkout can be moved with its build.
func workspacePath(from, to string) string {
	rel, err := filepath.Rel(from, to)
	switch {
	case err != nil: // another volume has no relative path
		return filepath.ToSlash(to)
	case filepath.IsLocal(rel):
		return "./" + filepath.ToSlash(rel)
	default:
		return filepath.ToSlash(rel)
	}
}

// newerGo returns the newest version in the go lines of files.
func newerGo(paths ...string) (newest string, err error) {
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
