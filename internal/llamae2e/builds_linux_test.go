package llamae2e

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/llamatier/launch"
)

// buildsEnv names the folder that scripts/llama-newest fills.
const buildsEnv = "KVTIER_LLAMA_BUILDS"

// kinds are a conversation of each kind of model, by the name in the table of builds.
var kinds = []struct{ name, conversation string }{
	{"full attention", "f16"}, {"windows", "window"}, {"hybrid", "convolutions"}, {"latent attention", "latent"},
}

// digest is a SHA-256, and the part of it that the table shows.
var digest = regexp.MustCompile(`([0-9a-f]{12})[0-9a-f]{52}`)

// TestBuilds says what the newest builds of llama.cpp, and the oldest, do with each kind of model, and writes
// it into the table of docs/llama-server.md.
func TestBuilds(t *testing.T) {
	folder := os.Getenv(buildsEnv)
	if folder == "" {
		t.Skip("make test-llama-newest gets the builds")
	}
	list, err := os.ReadFile(filepath.Join(folder, "builds"))
	require.NoError(t, err)
	header := "| build | from |"
	for _, kind := range kinds {
		header += " " + kind.name + " |"
	}
	table := []string{header, "|---|---|" + strings.Repeat("---|", len(kinds))}
	for _, line := range strings.Split(strings.TrimSpace(string(list)), "\n") {
		name, from, _ := strings.Cut(line, " ")
		row := fmt.Sprintf("| %s | %s |", name, digest.ReplaceAllString(from, "$1"))
		for _, kind := range kinds {
			if name == "gone" {
				row += " |"
				continue
			}
			i := slices.IndexFunc(conversations, func(c conversation) bool { return c.name == kind.conversation })
			cell := "does not start"
			t.Run(name+"/"+kind.name, func(t *testing.T) {
				c := conversations[i]
				o := c.options(t)
				o.Dir = filepath.Join(folder, name)
				cell = c.comesBack(t, o)
			})
			row += " " + cell + " |"
		}
		table = append(table, row)
	}
	text := strings.Join(table, "\n")
	t.Log("\n" + text)
	path := filepath.Join("..", "..", "docs", "llama-server.md")
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	const begin, end = "<!-- builds -->\n", "\n<!-- end of builds -->"
	before, rest, found := strings.Cut(string(page), begin)
	require.True(t, found)
	_, after, found := strings.Cut(rest, end)
	require.True(t, found)
	require.NoError(t, os.WriteFile(path, []byte(before+begin+text+end+after), 0o600))
}

// comesBack holds a conversation with a stock server and, with a kill between two turns, with ours, and
// says what came back: how many tokens, and how far apart log probabilities are.
func (c *conversation) comesBack(t *testing.T, o llamatest.Options) string {
	stock := start(t, o)
	turns := c.hold(stock)
	stock.Kill()
	o.Root = filepath.Join(t.TempDir(), "pages")
	s := start(t, o)
	c.say(s, turns[0].prompt, nil)
	s.Kill()
	if pages(t, o.Root) == 0 {
		return "not stored"
	}
	s = start(t, o)
	defer s.Kill()
	want, got := turns[1].answer, c.say(s, turns[1].prompt, nil)
	back := fmt.Sprintf("%d of %d tokens", got.Timings.Cached, turns[1].cached)
	if !slices.Equal(want.Tokens, got.Tokens) || len(want.Probabilities) != len(got.Probabilities) {
		return back + ", another answer"
	}
	apart := 0.0
	for i, p := range want.Probabilities {
		apart = max(apart, math.Abs(p.Logprob-got.Probabilities[i].Logprob))
	}
	if apart == 0 {
		return back + ", same bits"
	}
	return fmt.Sprintf("%s, %.4f apart", back, apart)
}

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
