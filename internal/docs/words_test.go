package docs

import (
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unclear are phrases that hide the subject of a sentence or that have two meanings, with the
// words to use instead. CONTRIBUTING.md has the rule.
var unclear = []struct {
	phrase  *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\bwhat(ever)?\b`), `a noun: "pages that were read", not "what was read"; "with any split", not "whatever the split is"`},
	{regexp.MustCompile(`(?i)\bwho(m)?ever\b`), `a noun: "a process that", "users that"`},
	{regexp.MustCompile(`(?im)(?:^|[.:;|] )who (can|may|has|gets|reads|writes|computes|wants)\b|\bwho computes\b`), `a noun: "a person who can", "slots that are generating"`},
	{regexp.MustCompile(`(?i)\bbut for\b`), `"except"`},
	{regexp.MustCompile(`(?i)\ball the same\b`), `"nevertheless"`},
}

// unclearIn returns a line for each unclear phrase in a document. Code is not looked at: it
// repeats the output of programs.
func unclearIn(text string) []string {
	text = codeSpan.ReplaceAllStringFunc(text, func(code string) string {
		return "`" + strings.Repeat("\n", strings.Count(code, "\n")) + "`"
	})
	var found []string
	for i, line := range strings.Split(text, "\n") {
		for _, u := range unclear {
			if phrase := u.phrase.FindString(line); phrase != "" {
				found = append(found, strings.TrimLeft(phrase, ".:;| ")+", line "+strconv.Itoa(i+1)+"; use "+u.instead)
			}
		}
	}
	return found
}

// TestWords: no document has an unclear phrase.
func TestWords(t *testing.T) {
	for _, name := range files(t, func(name string) bool { return strings.HasSuffix(name, ".md") }) {
		for _, found := range unclearIn(read(t, name)) {
			t.Errorf("%s: %s", name, found)
		}
	}
}

// TestWordsOfComments: no comment of Go code has an unclear phrase.
func TestWordsOfComments(t *testing.T) {
	for _, name := range files(t, func(name string) bool { return strings.HasSuffix(name, ".go") }) {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, read(t, name), parser.ParseComments)
		require.NoError(t, err)
		for _, group := range file.Comments {
			for _, found := range unclearIn(group.Text()) {
				t.Errorf("%s: %s", set.Position(group.Pos()), found)
			}
		}
	}
}

func TestUnclearPhrases(t *testing.T) {
	for _, text := range []string{
		"It keeps what was read.", "What holds", "whatever the split is", "whoever asks", "5 % but for two",
		"It works all the same.", "Who can write may read.", "| a | who gets the disk |", "by who computes",
	} {
		require.Len(t, unclearIn("# Title\n\n"+text+"\n"), 1, text)
	}
	for _, text := range []string{
		"A person who can write may read.", "but forgets", "somewhat", "`what`", "```\nwhat\n```",
	} {
		require.Empty(t, unclearIn(text+"\n"), text)
	}
	require.Contains(t, unclearIn("```\nwhat\n```\nwhat\n")[0], "line 4")
}
