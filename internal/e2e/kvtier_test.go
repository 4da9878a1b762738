package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tool is a built kvtier with the variables of a server.
type tool struct {
	t      *testing.T
	binary string
	root   string
}

func buildTool(t *testing.T, root string) tool {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "kvtier.exe") // Windows needs the suffix
	out, err := exec.Command("go", "build", "-o", binary, "../../cmd/kvtier").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return tool{t, binary, root}
}

// run runs a verb, which must end with the given status, and returns its output.
func (k tool) run(status int, args ...string) string {
	k.t.Helper()
	cmd := exec.Command(k.binary, append(args, "--root", k.root, "--models", shared.models)...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		require.NoError(k.t, err)
	}
	require.Equal(k.t, status, cmd.ProcessState.ExitCode(), "%v: %s", args, out)
	return string(out)
}

// TestKvtierBesideAServer works on the pages of a running server, and moves a conversation
// to another server, which continues it bit for bit.
func TestKvtierBesideAServer(t *testing.T) {
	s := start(t)
	k := buildTool(t, s.root)
	const n = 2*pageTokens + 133
	text := prompt(t, n, 1)
	s.ask(text, 40)
	held := s.ask(text, 40)
	s.unload() // unloading stores the remaining pages

	require.Contains(t, k.run(0, "ls"), model+":latest")
	k.run(0, "stat")
	k.run(0, "check")
	var shown struct{ Text string }
	var page string
	for _, path := range s.pages() {
		if !strings.Contains(path, "tails") {
			page = path
		}
	}
	require.NoError(t, json.Unmarshal([]byte(k.run(0, "inspect", page, "--json", "--verify")), &shown))
	require.NotEmpty(t, shown.Text)
	require.Contains(t, text, shown.Text, "a page has the prompt's text")

	file := filepath.Join(t.TempDir(), "chat.kvx")
	k.run(0, "export", "--last", "-o", file)
	other := startIn(t, filepath.Join(t.TempDir(), "pages"))
	tool{t, k.binary, other.root}.run(0, "import", file)
	got := other.ask(text, 40)
	require.Equal(t, n-1, got.restored)
	requireSame(t, held, got, "on another server")

	flipByte(t, page)
	require.Contains(t, k.run(1, "check"), "1 file is damaged")
	k.run(0, "repair")
	k.run(0, "check")
	require.Less(t, s.ask(text, 40).restored, n-1)
	s.unload()
	k.run(0, "rm", "--model", model)
	require.Empty(t, s.pages())
	require.Zero(t, s.ask(text, 40).restored)
	k.run(0, "check")
}

// flipByte damages the middle of a file.
func flipByte(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[len(data)/2] ^= 1
	require.NoError(t, os.WriteFile(path, data, 0o600))
}
