package docs

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/stretchr/testify/require"
)

// codeSpan is `code` in a line or a fenced block.
var codeSpan = regexp.MustCompile("(?s)```.*?```|`[^`\n]+`")

func TestMakeTargets(t *testing.T) {
	targets := matches(`(?m)^([a-z0-9-]+):`, read(t, "Makefile"))
	require.Equal(t, targets, matches(`(?m)^\.PHONY: ([a-z0-9-]+)$`, read(t, "Makefile")))
	command := regexp.MustCompile(`(?m)(?:^|[ ;` + "`" + `])make((?: +[a-z][a-z0-9-]*)+)`)
	for _, name := range documents(t) {
		for _, span := range codeSpan.FindAllString(read(t, name), -1) {
			for _, m := range command.FindAllStringSubmatch(span, -1) {
				for _, target := range strings.Fields(m[1]) {
					require.Contains(t, targets, target, "%s: make%s", name, m[1])
				}
			}
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	noSlug  = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// anchors are the names of a document's headings in links.
func anchors(document string) []string {
	var slugs []string
	for _, m := range heading.FindAllStringSubmatch(document, -1) {
		slugs = append(slugs, strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return slugs
}

func TestLinks(t *testing.T) {
	for _, name := range documents(t) {
		text := codeSpan.ReplaceAllString(read(t, name), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target, anchor, _ := strings.Cut(m[1], "#")
			if target == "" {
				target = name
			} else {
				target = path.Join(path.Dir(name), target)
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(target))); err != nil {
				t.Errorf("%s: the link %s leads nowhere", name, m[1])
			} else if anchor != "" && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s: %s has no heading #%s", name, target, anchor)
			}
		}
	}
}

// TestNamedTests: tests that a document names exist.
func TestNamedTests(t *testing.T) {
	var code strings.Builder
	holdsTests := func(name string) bool { return strings.HasSuffix(name, "_test.go") || isPatch(name) }
	for _, name := range files(t, holdsTests) {
		code.WriteString(read(t, name))
	}
	tests := matches(`(?m)^\+?func (Test[A-Za-z0-9_]+)\(`, code.String())
	for _, name := range documents(t) {
		for _, test := range matches("`(Test[A-Z][A-Za-z0-9_]*)`", read(t, name)) {
			require.Contains(t, tests, test, name)
		}
	}
}

// TestPlainGit: CI runs the lines in the document, and builds the same tree elsewhere.
func TestPlainGit(t *testing.T) {
	shown := section(t, read(t, installation), "### With plain git")
	script := read(t, "scripts/check-plain-git")
	_, script, found := strings.Cut(script, "compares them.\n")
	require.True(t, found)
	lines, _, _ := strings.Cut(script, "\n\n")
	require.Contains(t, shown, lines+"\ngo build .\n```")

	// Every folder whose patches the release gets, in the order of the series.
	series, err := ollamasrc.LoadSeries(filepath.Join(root, "patches"), ollamasrc.DefaultVersion, nil)
	require.NoError(t, err)
	var folders []string
	for _, p := range series.Patches {
		folders = append(folders, path.Join("../kvtier/patches", path.Dir(p.Name), "*.patch"))
	}
	require.Contains(t, lines, "git apply "+strings.Join(slices.Compact(folders), " ")+"\n")
}

// TestPatches: patches/README.md lists the series in order, by number and subject; patches
// of an overlay or an optional set with the folder.
func TestPatches(t *testing.T) {
	var want []string
	common := 0
	for _, name := range files(t, isPatch) {
		_, subject, found := strings.Cut(read(t, name), "\nSubject: [PATCH] ")
		require.True(t, found, name)
		subject, _, _ = strings.Cut(subject, "\n\n")
		folder, file := path.Split(strings.TrimPrefix(name, "patches/"))
		if folder == "" || strings.HasPrefix(folder, "optional/") {
			common++
		}
		number := folder + file[:4]
		want = append(want, number+" "+strings.ReplaceAll(subject, "\n ", " "))
	}
	require.LessOrEqual(t, common, 10)
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `((?:[^`]+/)?\\d{4})` ([^|]+) \\|").FindAllStringSubmatch(read(t, "patches/README.md"), -1) {
		got = append(got, m[1]+" "+m[2])
	}
	require.Equal(t, want, got)
}
