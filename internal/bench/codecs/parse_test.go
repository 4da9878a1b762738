package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Wrong command lines are refused before anything is started.
func TestParse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "book.txt")
	require.NoError(t, os.WriteFile(file, []byte("A short text."), 0o600))
	for says, args := range map[string][]string{
		"name a model and a text":    {"-model", "x.gguf"},
		`unexpected argument "more"`: {"-model", "x.gguf", "-text", file, "more"},
	} {
		_, err := parse(args, io.Discard)
		require.ErrorContains(t, err, says, args)
	}
	for says, s := range map[string]settings{
		"there is no such file": {model: "x.gguf", text: file},
		"it is no GGUF file":    {model: file, text: file},
	} {
		_, err := s.options()
		require.ErrorContains(t, err, says)
	}
}

func TestReadQuestions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "questions.json")
	for content, says := range map[string]string{
		"A short text.": "give a list of objects with question and answer",
		"[]":            "there are none",
		`[{"question": "a", "answer": "b"}, {"question": "a", "anwser": "b"}]`: "number 2 has no question or no answer",
	} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := readQuestions(path)
		require.ErrorContains(t, err, says)
	}
	require.NoError(t, os.WriteFile(path, []byte(`[{"question": "a", "answer": "b"}]`), 0o600))
	questions, err := readQuestions(path)
	require.NoError(t, err)
	require.Equal(t, []Question{{"a", "b"}}, questions)
	_, err = readText("text", t.TempDir())
	require.ErrorContains(t, err, "is a directory; give the name of a file")
}
