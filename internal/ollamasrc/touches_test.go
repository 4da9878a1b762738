package ollamasrc

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var touchesTrailer = regexp.MustCompile(`(?m)^Touches: (.+\n(?: .+\n)*)`)

// bothSeries are the series of two releases, which have all patches together.
func bothSeries(t *testing.T) (all []Series) {
	t.Helper()
	for _, version := range []string{DefaultVersion, NewestVersion} {
		series, err := LoadSeries(filepath.Join("..", "..", "patches"), version, nil)
		require.NoError(t, err)
		require.NotEmpty(t, series.Patches)
		all = append(all, series)
	}
	return all
}

// TestTouches: each patch names all of Ollama's files that it changes, with the lines that it
// adds to each. Files of earlier patches are ours.
func TestTouches(t *testing.T) {
	for _, series := range bothSeries(t) {
		ours := make(map[string]bool)
		for _, p := range series.Patches {
			text := string(p.Data)
			m := touchesTrailer.FindStringSubmatch(text)
			require.NotNil(t, m, p.Name)
			got := strings.Join(strings.Fields(m[1]), " ")
			require.Equal(t, touches(text, ours), got, "%s; see Touches: in patches/README.md", p.Name)
		}
	}
}

// TestSenders: every patch has the project's sender, in the folders of all releases.
func TestSenders(t *testing.T) {
	all := Series{Dir: filepath.Join("..", "..", "patches")}
	folders, err := places(all.Dir)
	require.NoError(t, err)
	for _, at := range folders {
		require.NoError(t, all.read(at))
	}
	require.NotEmpty(t, all.Patches)
	for _, p := range all.Patches {
		require.True(t, bytes.Equal(withSender(p.Data), p.Data), "%s has another sender than %s; run patch-ollama format", p.Name, Sender)
	}
}

// TestTitles: the title of a patch names the folders of Ollama in which it changes files, or
// makes them where it changes none: "llm, server: ".
func TestTitles(t *testing.T) {
	for _, series := range bothSeries(t) {
		ours := make(map[string]bool)
		for _, p := range series.Patches {
			title := patchTitle.FindStringSubmatch(string(p.Data))
			require.NotNil(t, title, p.Name)
			named := make(map[string]bool)
			for _, name := range strings.Split(title[1], ", ") {
				named[name] = false
			}
			for _, file := range titleFiles(string(p.Data), ours) {
				found := false
				for name := range named {
					if strings.Contains("/"+file, "/"+name+"/") {
						named[name], found = true, true
					}
				}
				require.True(t, found, "%s: its title does not name the folder of %s", p.Name, file)
			}
			for name, found := range named {
				require.True(t, found, "%s: its title names %s, where it changes nothing", p.Name, name)
			}
		}
	}
}

// TestSetsAreForThemselves: a build without an optional set says nothing of the set, so no patch for
// all builds does, in lines that it adds. A set may name another one, with which it cannot be used.
func TestSetsAreForThemselves(t *testing.T) {
	sets, err := Sets(filepath.Join("..", "..", "patches"))
	require.NoError(t, err)
	require.Equal(t, []string{"elastic", "paged"}, sets)
	for _, series := range bothSeries(t) {
		for _, p := range series.Patches {
			for line := range strings.Lines(string(p.Data)) {
				for _, set := range sets {
					named := strings.HasPrefix(line, "+") && strings.Contains(strings.ToLower(line), set)
					require.False(t, named && p.set == "", "%s names the set %s: %s", p.Name, set, line)
				}
			}
		}
	}
}

var patchTitle = regexp.MustCompile(`(?m)^Subject: \[PATCH\] ([^:]+): `)

// titleFiles are the files that the title of a patch is about. ours are as in [touches].
func titleFiles(patch string, ours map[string]bool) []string {
	before := maps.Clone(ours)
	var files []string
	if trailer := touches(patch, ours); trailer != "new files only" {
		for _, file := range strings.Split(trailer, ", ") {
			name, _, _ := strings.Cut(file, " ")
			files = append(files, name)
		}
		return files
	}
	for file := range ours {
		if !before[file] {
			files = append(files, file)
		}
	}
	return files
}

// touches is the trailer of a patch. ours are the files that patches have made; touches adds
// those of this patch.
func touches(patch string, ours map[string]bool) string {
	var files []string
	for _, diff := range strings.Split("\n"+patch, "\ndiff --git a/")[1:] {
		name, _, _ := strings.Cut(diff, " ")
		header, body, _ := strings.Cut(diff, "\n@@")
		switch {
		case strings.Contains(header, "\nnew file mode"):
			ours[name] = true
		case !ours[name]:
			n, lines := strings.Count(body, "\n+"), "lines"
			if n == 1 {
				lines = "line"
			}
			files = append(files, fmt.Sprintf("%s (%d %s)", name, n, lines))
		}
	}
	if files == nil {
		return "new files only"
	}
	return strings.Join(files, ", ")
}
