package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/ollama/ollama/fs/gguf"
	"github.com/ollama/ollama/tokenizer"

	"github.com/kvtier/kvtier/internal/sizing"
)

// ggufMagic begins a model file.
const ggufMagic = "GGUF"

// openModel opens a model file.
func openModel(path string) (*gguf.File, error) {
	if err := checkHead(path); err != nil {
		return nil, fmt.Errorf("read model %s: %w", path, err)
	}
	f, err := gguf.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read model %s: there is no such file; name a GGUF file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read model %s: it is no GGUF file, or not a whole one: %w", path, err)
	}
	if string(f.Magic[:]) != ggufMagic {
		f.Close()
		return nil, fmt.Errorf("read model %s: it is no GGUF file", path)
	}
	return f, nil
}

// checkHead refuses a GGUF file whose head is damaged: upstream's reader takes the memory that a
// length in it names, which would end the program.
func checkHead(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return nil // the caller's words are for it
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	magic := make([]byte, len(ggufMagic))
	if _, err := f.ReadAt(magic, 0); err != nil || string(magic) != ggufMagic {
		return nil // nor for this
	}
	_, err = sizing.ReadHeader(f, info.Size())
	return err
}

// decoder turns tokens into text.
type decoder struct {
	values []string
	decode func([]int32) (string, error)
}

// openDecoder reads the tokenizer of a model file.
func openDecoder(path string) (*decoder, error) {
	f, err := openModel(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	vocabulary := &tokenizer.Vocabulary{Values: f.KeyValue("tokenizer.ggml.tokens").Strings()}
	for _, kind := range f.KeyValue("tokenizer.ggml.token_type").Ints() {
		vocabulary.Types = append(vocabulary.Types, int32(kind))
	}
	for _, score := range f.KeyValue("tokenizer.ggml.scores").Floats() {
		vocabulary.Scores = append(vocabulary.Scores, float32(score))
	}
	d := &decoder{values: vocabulary.Values}
	switch kind := f.KeyValue("tokenizer.ggml.model").String(); {
	case kind == "gpt2" && len(d.values) > 0:
		d.decode = tokenizer.NewBytePairEncoding(vocabulary).Decode
	case kind == "llama" && min(len(d.values), len(vocabulary.Types), len(vocabulary.Scores)) >= minPieces:
		d.decode = tokenizer.NewSentencePiece(vocabulary).Decode
	default:
		return nil, fmt.Errorf("read model %s: its tokenizer is %q with %d tokens; only gpt2 and llama can be shown as text", path, kind, len(d.values))
	}
	return d, nil
}

// minPieces is the smallest vocabulary that Ollama's SentencePiece accepts.
const minPieces = 5

// text returns the text of tokens. A token outside the model's vocabulary is an error: the
// page belongs to another model.
func (d *decoder) text(tokens []int32) (string, error) {
	for _, t := range tokens {
		if t < 0 || int(t) >= len(d.values) {
			return "", fmt.Errorf("token %d is not one of the model's %s; give the model that the page is of", t, count(len(d.values)))
		}
	}
	return d.decode(tokens)
}
