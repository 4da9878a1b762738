package testmodel

import (
	"fmt"
	"strings"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/ollama/ollama/tokenizer"
)

// sentencePieceSpace stands for a space in SentencePiece's spelling.
const sentencePieceSpace = "▁"

// sentencePiece is what metadata is for models that have SentencePiece's kind of
// tokenizer: the same tokens with the same ids. The earlier a token was merged,
// the better its score.
func (v *vocabulary) sentencePiece() ggml.KV {
	tokens, types, scores := make([]string, len(v.tokens)), make([]int32, len(v.tokens)), make([]float32, len(v.tokens))
	for id, token := range v.tokens {
		tokens[id], types[id] = strings.ReplaceAll(token, byteLevel(" "), sentencePieceSpace), v.types[id]
		if id < byteTokens && (id < ' ' || id >= 0x7f) {
			tokens[id], types[id] = fmt.Sprintf("<0x%02X>", id), tokenizer.TOKEN_TYPE_BYTE
		}
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
