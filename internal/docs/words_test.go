package docs

import (
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
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
	{regexp.MustCompile(`(?im)(?:^|[.:;|]\s)who\s(can|may|has|gets|reads|writes|computes|wants)\b|\bwho\scomputes\b`), `a noun: "a person who can", "slots that are generating"`},
	{regexp.MustCompile(`(?i)\bbut\sfor\b`), `"except"`},
	{regexp.MustCompile(`(?i)\ball\sthe\ssame\b`), `"nevertheless"`},
}

// unclearIn returns a line for each unclear phrase in a document. Code is not looked at: it
// repeats the output of programs.
func unclearIn(text string) []string {
	text = codeSpan.ReplaceAllStringFunc(text, func(code string) string {
		return "`" + strings.Repeat("\n", strings.Count(code, "\n")) + "`"
	})
	var found []string
	for _, u := range unclear {
		for _, at := range u.phrase.FindAllStringIndex(text, -1) {
			phrase := strings.TrimLeft(text[at[0]:at[1]], ".:;| \n")
			line := 1 + strings.Count(text[:at[1]-len(phrase)], "\n")
			found = append(found, strings.Join(strings.Fields(phrase), " ")+", line "+strconv.Itoa(line)+"; use "+u.instead)
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

// errorOf matches the declaration of an exported error, and errorName an error's name with the
// package before it, if there is one.
var (
	errorOf   = regexp.MustCompile(`(?m)^\s*(?:var )?(Err[A-Za-z]+)\s*=`)
	errorName = regexp.MustCompile(`(?:^|[^\w.])(?:([a-z]\w*)\.)?(Err[A-Z][A-Za-z]+)`)
)

// TestErrorsInCommentsNameTheirPackage: a comment of the page store's packages names an error
// of another package with that package, so that a reader finds the error.
func TestErrorsInCommentsNameTheirPackage(t *testing.T) {
	names := files(t, func(name string) bool {
		return strings.HasPrefix(name, "diskstore/") && strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
	})
	folders := make(map[string][]string) // of each error
	for _, name := range names {
		for _, m := range errorOf.FindAllStringSubmatch(read(t, name), -1) {
			folders[m[1]] = append(folders[m[1]], path.Dir(name))
		}
	}
	require.Contains(t, folders, "ErrNotFound")
	for _, name := range names {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, read(t, name), parser.ParseComments)
		require.NoError(t, err)
		for _, group := range file.Comments {
			for _, m := range errorName.FindAllStringSubmatch(group.Text(), -1) {
				of := folders[m[2]]
				here := path.Dir(name)
				if m[1] != "" {
					here = m[1]
				}
				if len(of) > 0 && !slices.ContainsFunc(of, func(dir string) bool { return dir == here || path.Base(dir) == m[1] }) {
					t.Errorf("%s: %s; write %s.%s", set.Position(group.Pos()), m[0], path.Base(of[0]), m[2])
				}
			}
		}
	}
}

func TestUnclearPhrases(t *testing.T) {
	for _, text := range []string{
		"It keeps what was read.", "What holds", "whatever the split is", "whoever asks", "5 % but for two",
		"It works all the same.", "nothing goes but\nfor two", "Who can write may read.", "| a | who gets the disk |", "by who computes",
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
