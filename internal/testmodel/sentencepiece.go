package testmodel

import (
	"fmt"
	"strings"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/ollama/ollama/tokenizer"
)

// sentencePieceSpace stands for a space in SentencePiece's spelling.
const sentencePieceSpace = "▁"

// sentencePiece is the metadata of models with SentencePiece's kind of tokenizer: the same
// tokens with the same ids. Tokens of earlier merges have better scores.
func (v *vocabulary) sentencePiece() ggml.KV {
	tokens, types := v.spaced()
	scores := make([]float32, len(v.tokens))
	for id := range scores {
		scores[id] = float32(-max(0, id-byteTokens))
	}
	return ggml.KV{
		"tokenizer.ggml.model":      "llama",
		"tokenizer.ggml.pre":        nil,
		"tokenizer.ggml.merges":     nil,
		"tokenizer.ggml.tokens":     tokens,
		"tokenizer.ggml.token_type": types,
		"tokenizer.ggml.scores":     scores,
	}
}

// spacedMerges is the metadata of models with the merges of byte-pair encoding and
// SentencePiece's spelling.
func (v *vocabulary) spacedMerges() ggml.KV {
	tokens, types := v.spaced()
	var merges []string
	for _, merge := range v.merges {
		merges = append(merges, strings.ReplaceAll(merge, byteLevel(" "), sentencePieceSpace))
	}
	return ggml.KV{
		"tokenizer.ggml.model":      "llama",
		"tokenizer.ggml.pre":        "gemma4",
		"tokenizer.ggml.merges":     merges,
		"tokenizer.ggml.tokens":     tokens,
		"tokenizer.ggml.token_type": types,
	}
}

// spaced returns the tokens in SentencePiece's spelling, and their types. A character stands
// for itself, and a byte that is no character has a name.
func (v *vocabulary) spaced() (tokens []string, types []int32) {
	for id, token := range v.tokens {
		kind := v.types[id]
		if token = strings.ReplaceAll(token, byteLevel(" "), sentencePieceSpace); id < byteTokens && (id < ' ' || id >= 0x7f) {
			token, kind = fmt.Sprintf("<0x%02X>", id), tokenizer.TOKEN_TYPE_BYTE
		}
		tokens, types = append(tokens, token), append(types, kind)
	}
	return tokens, types
}
