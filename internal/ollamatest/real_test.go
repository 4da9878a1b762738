package ollamatest

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/testmodel"
)

// These tests run the Ollama that FindBinary finds, and are skipped without one.

// model is small, and has heads that quantized caches accept.
var model = testmodel.Shape{Layers: 4, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Seed: 1}

// startReal starts a server that has model, in that architecture, as "small".
func startReal(t *testing.T, arch string, env ...string) *Server {
	t.Helper()
	s := ForTest(t, Options{Env: env})
	shape := model
	shape.Arch = arch
	gguf := filepath.Join(t.TempDir(), "a model.gguf")
	require.NoError(t, testmodel.Write(gguf, shape))
	require.NoError(t, s.CreateModel(testContext(t), "small", gguf, testmodel.Modelfile(gguf)))
	return s
}

func prompt(t *testing.T, tokens int) string {
	t.Helper()
	text, err := testmodel.Prompt(model, tokens, 1)
	require.NoError(t, err)
	return text
}

func greedy(t *testing.T, tokens int) Request {
	return Request{
		Model: "small", Prompt: prompt(t, 1000), Raw: true, Logprobs: true, TopLogprobs: 2,
		Options: Greedy(tokens, 2048), KeepAlive: KeepAlive(-1),
	}
}

func TestGenerate(t *testing.T) {
	s := startReal(t, "qwen3")
	ctx := testContext(t)
	first, err := s.Generate(ctx, greedy(t, 16))
	require.NoError(t, err)
	require.Equal(t, 1000, first.PromptEvalCount)
	require.Equal(t, 16, first.EvalCount)
	require.Equal(t, "length", first.DoneReason, "the model never ends an answer by itself")
	require.Len(t, first.Logprobs, 16)
	var text strings.Builder
	for _, token := range first.Logprobs {
		require.Len(t, token.TopLogprobs, 2)
		require.Equal(t, token.Logprob, token.TopLogprobs[0].Logprob, "greedy takes the best")
		text.WriteString(token.Token)
	}
	require.Equal(t, first.Text, text.String())
	require.LessOrEqual(t, first.TTFT, first.Total)
	require.Less(t, first.TTFTMinusLoad(), first.TTFT)

	second, err := s.Generate(ctx, greedy(t, 16))
	require.NoError(t, err)
	require.Equal(t, first.Text, second.Text)
	t.Logf("time to first token, load taken off: %s, then %s", first.TTFTMinusLoad(), second.TTFTMinusLoad())
}

func TestSameOutputAfterKills(t *testing.T) {
	s := startReal(t, "qwen3")
	ctx := testContext(t)
	first, err := s.Generate(ctx, greedy(t, 16))
	require.NoError(t, err)
	for _, test := range []struct {
		name   string
		forget func() error
	}{
		{"the runner is killed", s.KillRunner},
		{"the server is killed", func() error { return errors.Join(s.KillServer(), s.Restart(ctx)) }},
		{"the model is unloaded", func() error { return s.Unload(ctx, "small") }},
	} {
		require.NoError(t, test.forget(), test.name)
		again, err := s.Generate(ctx, greedy(t, 16))
		require.NoError(t, err, test.name)
		require.Equal(t, first.Logprobs, again.Logprobs, "bit by bit after %s", test.name)
	}
}

func TestUnload(t *testing.T) {
	s := startReal(t, "qwen3")
	ctx := testContext(t)
	require.NoError(t, s.Unload(ctx, "small"), "nothing is loaded yet")
	_, err := s.Generate(ctx, greedy(t, 1))
	require.NoError(t, err)
	models, err := s.PS(ctx)
	require.NoError(t, err)
	require.Len(t, models, 1)
	require.Equal(t, 2048, models[0].ContextLength)
	runners, err := s.Runners()
	require.NoError(t, err)
	require.Len(t, runners, 1)

	require.NoError(t, s.Unload(ctx, "small"))
	models, err = s.PS(ctx)
	require.NoError(t, err)
	require.Empty(t, models)
	runners, err = s.Runners()
	require.NoError(t, err)
	require.Empty(t, runners)
	require.ErrorContains(t, s.Unload(ctx, "absent"), "absent")
}

func TestServerGoesOnAfterAClientLeaves(t *testing.T) {
	s := startReal(t, "qwen3")
	ctx, cancel := context.WithCancel(testContext(t))
	// Long enough that the answer has not ended when the model is loaded.
	request := greedy(t, 100000)
	left := make(chan error)
	go func() {
		_, err := s.Generate(ctx, request)
		left <- err
	}()
	require.NoError(t, poll(ctx, "the model to be loaded", func() (bool, error) {
		models, err := s.PS(ctx)
		return len(models) == 1, err
	}))
	cancel()
	require.ErrorIs(t, <-left, context.Canceled)
	_, err := s.Generate(testContext(t), greedy(t, 1))
	require.NoError(t, err, "the server goes on")
}

func TestChat(t *testing.T) {
	s := startReal(t, "qwen3")
	ctx := testContext(t)
	result, err := s.Chat(ctx, ChatRequest{
		Model: "small", Options: Greedy(8, 1024), Logprobs: true,
		Messages: []Message{{Role: "user", Content: "Tell me the story of the castle."}},
	})
	require.NoError(t, err)
	require.NotEmpty(t, result.Text)
	require.Equal(t, "assistant", result.Message.Role)
	require.Equal(t, 8, result.EvalCount)
	require.Len(t, result.Logprobs, 8)

	_, err = s.Chat(ctx, ChatRequest{Model: "absent", Messages: []Message{{Role: "user", Content: "x"}}})
	require.ErrorContains(t, err, "chatting with absent")
}

func TestCommandLine(t *testing.T) {
	s := startReal(t, "qwen3")
	ctx := testContext(t)
	gguf := filepath.Join(t.TempDir(), "short.gguf")
	require.NoError(t, testmodel.Write(gguf, model))
	require.NoError(t, s.CreateModel(ctx, "short", gguf, testmodel.Modelfile(gguf)+"PARAMETER num_predict 8\n"))
	out, err := s.Command(ctx, "run", "short", "hello").Output()
	require.NoError(t, err)
	require.NotEmpty(t, strings.TrimSpace(string(out)))
}

// TestEngineSettings: the shape runs under every setting that changes a cache's layout.
func TestEngineSettings(t *testing.T) {
	for _, test := range []struct {
		arch, log string
		env       []string
	}{
		{"qwen3", "KvSize:2048 KvCacheType: ", []string{"OLLAMA_FLASH_ATTENTION=0"}},
		{"qwen3", "KvCacheType:q8_0", []string{"OLLAMA_FLASH_ATTENTION=1", "OLLAMA_KV_CACHE_TYPE=q8_0"}},
		{"qwen3", "KvCacheType:q4_0", []string{"OLLAMA_FLASH_ATTENTION=1", "OLLAMA_KV_CACHE_TYPE=q4_0"}},
		{"llama", "--ollama-engine --model", []string{"OLLAMA_NEW_ENGINE=1"}},
		{"llama", "runner --model", nil},
	} {
		t.Run(test.arch+" "+strings.Join(test.env, " "), func(t *testing.T) {
			s := startReal(t, test.arch, test.env...)
			result, err := s.Generate(testContext(t), greedy(t, 16))
			require.NoError(t, err)
			require.Equal(t, 16, result.EvalCount)
			require.Contains(t, s.Logs(), test.log)
		})
	}
}

func TestStopIsQuick(t *testing.T) {
	s := startReal(t, "qwen3")
	_, err := s.Generate(testContext(t), greedy(t, 1))
	require.NoError(t, err)
	pid, start := s.PID(), time.Now()
	require.NoError(t, s.Stop())
	requireGone(t, pid)
	t.Logf("stopped in %s", time.Since(start))
}
