package llamae2e

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamatier/launch"
)

// Parts of llama-server's help: the flags of an option with the names of its values, one
// of these, and the option's variable.
var (
	helpFlags    = regexp.MustCompile(`^(--?[A-Za-z][^ ,]*(?:, +-[^ ,]+)*)((?: (?:<[^>]*>|\S)+)*)(?:  |\n)`)
	helpValue    = regexp.MustCompile(` (?:<[^>]*>|\S)+`)
	helpVariable = regexp.MustCompile(`\(env: ([A-Z0-9_]+)\)`)
)

// TestEveryOptionIsKnown: the table of options has those that this llama-server has, with their
// flags, values and variables.
func TestEveryOptionIsKnown(t *testing.T) {
	help, err := exec.CommandContext(t.Context(), filepath.Join(tree(t), "lib", "ollama", "llama-server-real"), "--help").Output()
	require.NoError(t, err)
	var last launch.Option
	seen := 0
	for line := range strings.Lines(string(help)) {
		if m := helpFlags.FindStringSubmatch(line); m != nil {
			for flag := range strings.FieldsSeq(strings.ReplaceAll(m[1], ",", " ")) {
				o, _, known := launch.ByFlag(flag)
				if assert.True(t, known, "llamatier/launch/options.go lacks %s:\n%s", flag, line) {
					assert.Equal(t, len(helpValue.FindAllString(m[2], -1)), o.Values, line)
				}
				last = o
				seen++
			}
		}
		if m := helpVariable.FindStringSubmatch(line); m != nil && last.Flags != nil {
			assert.Equal(t, m[1], last.Env, last.Flags)
		}
	}
	require.Greater(t, seen, 300)
}
