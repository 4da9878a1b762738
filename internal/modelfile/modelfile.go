// Package modelfile opens the GGUF files of models, and turns their tokens into text. A file may
// come from other people: one that lies about its lengths is an error.
package modelfile

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/ollama/ollama/fs/gguf"
	"github.com/ollama/ollama/tokenizer"

	"github.com/kvtier/kvtier/internal/sizing"
)

// Open opens a model file. Upstream's reader believes the lengths that a file names, and a
// hostile file would end this program, so another reader checks them first.
func Open(path string) (*gguf.File, error) {
	err := sizing.CheckFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read model %s: there is no such file; name a GGUF file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read model %s: %w", path, err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read model %s: it is no GGUF file, or not a whole one: %w", path, err)
	}
	return f, nil
}

// Decoder turns tokens into text.
type Decoder struct {
	values []string
	types  []int32
	decode func([]int32) (string, error)
}

// OpenDecoder reads the tokenizer of a model file.
func OpenDecoder(path string) (*Decoder, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	vocabulary := &tokenizer.Vocabulary{Values: f.KeyValue("tokenizer.ggml.tokens").Strings()}
	for _, kind := range f.KeyValue("tokenizer.ggml.token_type").Ints() {
		vocabulary.Types = append(vocabulary.Types, int32(kind))
	}
	// Upstream reads as many values as there are types.
	vocabulary.Types = vocabulary.Types[:min(len(vocabulary.Types), len(vocabulary.Values))]
	for _, score := range f.KeyValue("tokenizer.ggml.scores").Floats() {
		vocabulary.Scores = append(vocabulary.Scores, float32(score))
	}
	d := &Decoder{values: vocabulary.Values, types: vocabulary.Types}
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

// Medium stands for an image or a sound in a text.
const Medium = "[image]"

// Text returns the text of tokens. Those below 0 are of an image or a sound. Any other token outside the
// model's vocabulary is an error: the page belongs to another model.
func (d *Decoder) Text(tokens []int32) (text string, err error) {
	for _, t := range tokens {
		if int(t) >= len(d.values) {
			return "", fmt.Errorf("token %d is not one of the model's %d; give the model that the page is of", t, len(d.values))
		}
	}
	for len(tokens) > 0 {
		n := slices.IndexFunc(tokens, func(t int32) bool { return t < 0 != (tokens[0] < 0) })
		if n < 0 {
			n = len(tokens)
		}
		more := Medium
		if tokens[0] >= 0 {
			if more, err = d.decode(tokens[:n]); err != nil {
				return "", err
			}
		}
		text, tokens = text+more, tokens[n:]
	}
	return text, nil
}

// typeControl is the type of tokens that are no text, such as the marks around a message.
const typeControl = 3

// Words does as Text without images and control tokens, and without spaces around the text. Bytes that are no
// characters, as where a character is cut in two, are left out.
func (d *Decoder) Words(tokens []int32) (string, error) {
	none := func(t int32) bool { return t < 0 || int(t) < len(d.types) && d.types[t] == typeControl }
	text, err := d.Text(slices.DeleteFunc(slices.Clone(tokens), none))
	return strings.TrimSpace(strings.ToValidUTF8(text, "")), err
}
