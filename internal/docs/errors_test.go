package docs

import (
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
