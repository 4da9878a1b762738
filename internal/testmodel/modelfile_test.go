package testmodel

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ollama/ollama/api"
	"github.com/ollama/ollama/parser"
	"github.com/ollama/ollama/template"
	"github.com/stretchr/testify/require"
)

func TestModelfile(t *testing.T) {
	gguf := write(t, small("qwen3"))
	parsed, err := parser.ParseFile(strings.NewReader(Modelfile(gguf)))
	require.NoError(t, err)
	request, err := parsed.CreateRequest("")
	require.NoError(t, err)
	require.Contains(t, request.Files, gguf)
	require.Equal(t, []string{ImStart, ImEnd}, request.Parameters["stop"])

	chat, err := template.Parse(request.Template)
	require.NoError(t, err)
	var prompt bytes.Buffer
	require.NoError(t, chat.Execute(&prompt, template.Values{Messages: []api.Message{
		{Role: "system", Content: "Be brief."}, {Role: "user", Content: "Hello"},
	}}))
	require.Equal(t, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", prompt.String())
}

func TestOllamaKnowsTheTemplateInTheFile(t *testing.T) {
	kv := decode(t, write(t, small("qwen3"))).KV()
	named, err := template.Named(kv.ChatTemplate())
	require.NoError(t, err)
	require.Equal(t, "chatml", named.Name)
}
