package docs

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

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

// anchors are the headings of a document as a link names them.
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

// TestNamedTests: a document that says which test shows a promise names one that
// there is.
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

// TestPlainGit: the lines that CI runs are those that the README shows.
func TestPlainGit(t *testing.T) {
	shown := section(t, read(t, readme), "### With plain git")
	script := read(t, "scripts/check-plain-git")
	_, script, found := strings.Cut(script, "compares them.\n")
	require.True(t, found)
	lines, _, _ := strings.Cut(script, "\n\n")
	require.Contains(t, shown, lines+"\n```")
}

// TestPatches: patches/README.md lists the series, in its order, by number and
// subject.
func TestPatches(t *testing.T) {
	var want []string
	for _, name := range files(t, isPatch) {
		_, subject, found := strings.Cut(read(t, name), "\nSubject: [PATCH] ")
		require.True(t, found, name)
		subject, _, _ = strings.Cut(subject, "\n\n")
		number := path.Base(name)[:4]
		want = append(want, number+" "+strings.ReplaceAll(subject, "\n ", " "))
	}
	require.LessOrEqual(t, len(want), 8)
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\d{4})` ([^|]+) \\|").FindAllStringSubmatch(read(t, "patches/README.md"), -1) {
		got = append(got, m[1]+" "+m[2])
	}
	require.Equal(t, want, got)
}
