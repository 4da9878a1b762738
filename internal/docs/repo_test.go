package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the path of the repository from this package's folder.
const root = "../.."

const (
	readme        = "README.md"
	configuration = "docs/configuration.md"
	installation  = "docs/install.md"
	models        = "docs/models.md"
)

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	require.NoError(t, err)
	return string(data)
}

// files lists the repository's files that keep accepts, by slashed path from the root,
// without build/ and hidden folders.
func files(t *testing.T, keep func(name string) bool) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if d.IsDir() {
			if name == "build" || (strings.HasPrefix(d.Name(), ".") && name != ".") {
				return fs.SkipDir
			}
			return nil
		}
		if keep(name) {
			names = append(names, name)
		}
		return nil
	})
	require.NoError(t, err)
	return names
}

// documents are the Markdown files.
func documents(t *testing.T) []string {
	return files(t, func(name string) bool { return strings.HasSuffix(name, ".md") })
}

// shipped is the Go code that runs in a patched server: kvtier's packages and the lines that
// patches add to Ollama.
func shipped(t *testing.T) string {
	t.Helper()
	return code(t, "kvcache/", "diskstore/", "internal/tierenv/", "telemetry/listen/") + patched(t)
}

// code is the Go code below some folders, without tests.
func code(t *testing.T, folders ...string) string {
	t.Helper()
	var b strings.Builder
	for _, name := range files(t, func(name string) bool {
		ours := slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(name, folder) })
		return ours && strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
	}) {
		b.WriteString(read(t, name))
	}
	return b.String()
}

// patched is the lines that patches add to Ollama.
func patched(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, name := range files(t, isPatch) {
		for _, line := range strings.Split(read(t, name), "\n") {
			if added, ok := strings.CutPrefix(line, "+"); ok {
				b.WriteString(added + "\n")
			}
		}
	}
	return b.String()
}

func isPatch(name string) bool {
	return strings.HasPrefix(name, "patches/") && strings.HasSuffix(name, ".patch")
}

// matches returns the first group of every match, sorted, each once.
func matches(pattern, text string) []string {
	found := []string{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// section is the part of a document under a heading, up to the next heading of the same or a
// higher level.
func section(t *testing.T, document, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(document, "\n"+heading+"\n")
	require.True(t, found, "no heading %q", heading)
	level := strings.Index(heading, " ")
	if next := regexp.MustCompile(`(?m)^#{1,` + string(rune('0'+level)) + `} `).FindStringIndex(text); next != nil {
		text = text[:next[0]]
	}
	return text
}
