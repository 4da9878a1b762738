package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ollama/ollama/api"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
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
	full := s.fullPages()
	page := full[len(full)-1]
	key := strings.TrimSuffix(filepath.Base(page), ".kvp") // of a page by its file the model is not known
	require.NoError(t, json.Unmarshal([]byte(k.run(0, "inspect", key, "--json", "--verify")), &shown))
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

// Removing a model removes the model's pages.

// removable is a server with its own models and page directories.
type removable struct {
	*server
	remote string
}

func startRemovable(t *testing.T) removable {
	t.Helper()
	root, remote := filepath.Join(t.TempDir(), "pages"), remoteDir(t)
	s := &server{t: t, root: root, Server: ollamatest.ForTest(t, ollamatest.Options{Env: []string{
		"OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL=" + root, "OLLAMA_KV_TIER_REMOTE=" + remote,
		"OLLAMA_KV_TIER_LOCAL_GB=0.002", "OLLAMA_KV_TIER_TEST=1", "OLLAMA_NUM_PARALLEL=1",
	}})}
	s.create(model, shared.gguf)
	return removable{server: s, remote: remote}
}

// fill stores more than the local tier holds, and returns a stored prompt.
func (s removable) fill(t *testing.T) string {
	t.Helper()
	text := prompt(t, 900, 1)
	s.ask(prompt(t, 900, 2), 4)
	s.ask(text, 4)
	s.unload()
	require.NotEmpty(t, s.pages())
	require.NotEmpty(t, s.remotePages(t))
	return text
}

func (s removable) remotePages(t *testing.T) []string { return files(t, s.remote, ".kvp") }

// remove is "ollama rm" on the command line, which also unloads the model.
func (s removable) remove(t *testing.T, name string) {
	t.Helper()
	out, err := s.Command(s.context(), "rm", name).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

const removedLine = "kv tier: removed the pages of a model that was removed"

func TestRemovedModelLeavesNoPages(t *testing.T) {
	s := startRemovable(t)
	s.fill(t)
	s.remove(t, model)
	require.NoError(t, s.WaitLog(s.context(), removedLine))
	require.Empty(t, s.pages())
	require.Empty(t, s.remotePages(t))
	require.Equal(t, 1, strings.Count(s.Logs(), removedLine))
}

// Pages belong to weights, and stay as long as another name has the same weights.
func TestRemovedNameKeepsPagesOfTheOther(t *testing.T) {
	s := startRemovable(t)
	other := shape
	other.Seed = 9
	gguf := filepath.Join(t.TempDir(), "other.gguf")
	require.NoError(t, testmodel.Write(gguf, other))
	s.create("other", gguf)
	toOther := func(r *ollamatest.Request) { r.Model = "other" }
	short := prompt(t, 300, 3)
	s.ask(short, 4, toOther)

	text := s.fill(t)
	require.NoError(t, s.API().Copy(s.context(), &api.CopyRequest{Source: model, Destination: "copy"}))
	s.remove(t, model)
	toCopy := func(r *ollamatest.Request) { r.Model = "copy" }
	require.Equal(t, 899, s.ask(text, 4, toCopy).restored, "another name for the same weights")

	s.remove(t, "copy")
	require.NoError(t, s.WaitLog(s.context(), removedLine))
	require.NoError(t, s.Unload(s.context(), "other"))
	require.Equal(t, 299, s.ask(short, 4, toOther).restored, "another model")
	s.remove(t, "other")
	require.NoError(t, s.Stop())
	require.Empty(t, s.pages())
	require.Empty(t, s.remotePages(t))
}

// A model removed during an answer finishes the answer, and pages that its runner stores
// until then are removed with the model.
func TestRemovedWhileItAnswers(t *testing.T) {
	s := startRemovable(t)
	s.fill(t)
	answered := make(chan error)
	request := requestFor(prompt(t, 900, 4), 900)
	var got ollamatest.Result
	ctx, mark := s.context(), s.LogMark()
	go func() {
		var err error
		got, err = s.Generate(ctx, request)
		answered <- err
	}()
	require.NoError(t, s.WaitLogFrom(s.context(), mark, "runner started in"))
	require.NoError(t, s.API().Delete(s.context(), &api.DeleteRequest{Model: model}))
	require.NoError(t, <-answered)
	require.Equal(t, 900, got.EvalCount)
	require.NoError(t, s.Stop()) // stopping the server ends the runner
	require.Empty(t, s.pages())
	require.Empty(t, s.remotePages(t))
}
