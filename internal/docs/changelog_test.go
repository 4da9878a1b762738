package docs

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write CHANGELOG.md")

const (
	changelog       = "CHANGELOG.md"
	unreleasedBegin = "<!-- made by `make changelog` from changelog/unreleased -->\n"
	unreleasedEnd   = "<!-- end -->\n"
)

// kinds in the order of the sections.
var kinds = []string{"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}

// TestChangelog: the unreleased section has exactly the entries of changelog/unreleased.
func TestChangelog(t *testing.T) {
	text := read(t, changelog)
	before, rest, found := strings.Cut(text, unreleasedBegin)
	require.True(t, found)
	_, after, found := strings.Cut(rest, unreleasedEnd)
	require.True(t, found)
	want := before + unreleasedBegin + unreleased(t) + unreleasedEnd + after
	if *update {
		require.NoError(t, os.WriteFile(filepath.Join(root, changelog), []byte(want), 0o644))
		return
	}
	require.Equal(t, want, text, "run make changelog")
}

// unreleased renders the entries, by kind and then by file name.
func unreleased(t *testing.T) string {
	t.Helper()
	byKind := make(map[string][]string)
	for _, name := range files(t, func(name string) bool { return strings.HasPrefix(name, "changelog/unreleased/") }) {
		first, body, _ := strings.Cut(strings.TrimSpace(read(t, name)), "\n")
		kind, headline, found := strings.Cut(first, ": ")
		require.True(t, found, "%s: the first line is not a kind and a headline", name)
		require.Contains(t, kinds, kind, name)
		entry := "- **" + headline + ".**"
		if body = strings.Join(strings.Fields(body), " "); body != "" {
			entry += " " + body
		}
		byKind[kind] = append(byKind[kind], entry+"\n")
	}
	var b strings.Builder
	for _, kind := range kinds {
		if entries := byKind[kind]; len(entries) > 0 {
			fmt.Fprintf(&b, "\n### %s\n\n%s", kind, strings.Join(entries, ""))
		}
	}
	return b.String() + "\n"
}
