package testmodel

import (
	_ "embed"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/ollama/ollama/tokenizer"
)

// The special tokens of ChatML, the last three of every vocabulary. ImEnd ends
// a turn and EndOfText a document; Ollama stops at either.
const (
	EndOfText = "<|endoftext|>"
	ImStart   = "<|im_start|>"
	ImEnd     = "<|im_end|>"
)

// commonWords is one lower-case word per line, roughly by frequency.
//
//go:embed words.txt
var commonWords string

// learnedMerges are the first merges that byte-pair encoding finds in the common words, one per
// line, the most useful first. The n-th word counts 1/n, and its forms after a space, alone and
// capitalized after a space as 10 to 2 to 1.
//
//go:embed merges.txt
var learnedMerges string

const (
	byteTokens    = 256
	specialTokens = 3
	vocabMin      = byteTokens + specialTokens
)

// vocabulary holds the tokens in order: one per byte, one per merge, unused fillers, special tokens.
type vocabulary struct {
	tokens    []string
	types     []int32
	merges    []string
	printable []bool // the model may generate the token
}

// newVocabulary builds a vocabulary of size tokens. A size below vocabMin gives
// the smallest one; Shape.validate refuses such a model.
func newVocabulary(size int) *vocabulary {
	size = max(size, vocabMin)
	v := &vocabulary{}
	for b := range byteTokens {
		v.add(byteLevel(string([]byte{byte(b)})), tokenizer.TOKEN_TYPE_NORMAL, b >= ' ' && b < 0x7f || b == '\n')
	}
	seen := make(map[string]bool)
	for merge := range strings.Lines(learnedMerges) {
		if len(v.tokens) == size-specialTokens {
			break
		}
		merge = strings.TrimSpace(merge)
		v.merges = append(v.merges, merge)
		// Two merges can spell the same token, which gets one id.
		if token := strings.Replace(merge, " ", "", 1); !seen[token] {
			seen[token] = true
			v.add(token, tokenizer.TOKEN_TYPE_NORMAL, true)
		}
	}
	for i := 0; len(v.tokens) < size-specialTokens; i++ {
		v.add(fmt.Sprintf("<|unused_%d|>", i), tokenizer.TOKEN_TYPE_UNUSED, false)
	}
	for _, token := range []string{EndOfText, ImStart, ImEnd} {
		v.add(token, tokenizer.TOKEN_TYPE_CONTROL, false)
	}
	return v
}

func (v *vocabulary) add(token string, kind int32, printable bool) {
	v.tokens = append(v.tokens, token)
	v.types = append(v.types, kind)
	v.printable = append(v.printable, printable)
}

// metadata is GGUF's description of the tokenizer. Ollama's engine and llama.cpp know the
// pretokenizer "qwen2".
func (v *vocabulary) metadata() ggml.KV {
	endOfText, imEnd := len(v.tokens)-specialTokens, len(v.tokens)-1
	return ggml.KV{
		"tokenizer.ggml.model":            "gpt2",
		"tokenizer.ggml.pre":              "qwen2",
		"tokenizer.ggml.tokens":           v.tokens,
		"tokenizer.ggml.token_type":       v.types,
		"tokenizer.ggml.merges":           v.merges,
		"tokenizer.ggml.add_bos_token":    false,
		"tokenizer.ggml.bos_token_id":     uint32(endOfText),
		"tokenizer.ggml.padding_token_id": uint32(endOfText),
		"tokenizer.ggml.eos_token_id":     uint32(imEnd),
		"tokenizer.ggml.eos_token_ids":    []int32{int32(imEnd), int32(endOfText)},
		"tokenizer.chat_template":         jinjaTemplate,
	}
}

// infillNames are GGUF's names of the tokens of texts with a gap: before its parts, a repository and a file.
var infillNames = []string{"pre", "suf", "mid", "rep", "sep"}

// byteLevel spells bytes as GPT-2's vocabulary does: a printable Latin-1 character stands
// for itself, and other bytes are numbered from U+0100 on, so that a space is "Ġ".
func byteLevel(s string) string {
	var out strings.Builder
	for _, b := range []byte(s) {
		r := rune(b)
		switch {
		case r <= ' ':
			r += 0x100
		case r >= 0x7f && r <= 0xa0:
			r += 0xa2
		case r == 0xad:
			r = 0x143
		}
		out.WriteRune(r)
	}
	return out.String()
}

// Prompt returns words that the tokenizer of s encodes as exactly the given number of tokens, one word each.
// The same seed gives the same words, and a shorter prompt is a prefix of a longer one.
func Prompt(s Shape, tokens int, seed int64) (string, error) {
	s = s.WithDefaults()
	if err := s.validate(); err != nil {
		return "", err
	}
	words := wholeWords(newVocabulary(s.Vocab))
	if len(words) == 0 {
		return "", fmt.Errorf("making a prompt: a vocabulary of %d tokens holds no whole word; choose a larger one", s.Vocab)
	}
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	var prompt strings.Builder
	for range tokens {
		prompt.WriteString(words[random.IntN(len(words))])
	}
	return prompt.String(), nil
}

// wholeWords returns the common words that are one token after a space.
func wholeWords(v *vocabulary) []string {
	known := make(map[string]bool)
	for _, token := range v.tokens {
		known[token] = true
	}
	var words []string
	for _, text := range Words() {
		if known[byteLevel(" "+text)] {
			words = append(words, " "+text)
		}
	}
	return words
}

// Words returns common English words in lower case, roughly by frequency.
func Words() []string { return strings.Fields(commonWords) }

// sentencePieceSpace stands for a space in SentencePiece's spelling.
const sentencePieceSpace = "▁"

// sentencePiece is the metadata of models with SentencePiece's kind of tokenizer: the same
// tokens with the same ids. Tokens of earlier merges have better scores.
func (v *vocabulary) sentencePiece() ggml.KV {
	scores := make([]float32, len(v.tokens))
	for id := range scores {
		scores[id] = float32(-max(0, id-byteTokens))
	}
	return v.spaced(ggml.KV{"tokenizer.ggml.pre": nil, "tokenizer.ggml.merges": nil, "tokenizer.ggml.scores": scores})
}

// spacedMerges is the metadata of models with the merges of byte-pair encoding and SentencePiece's spelling.
func (v *vocabulary) spacedMerges() ggml.KV {
	var merges []string
	for _, merge := range v.merges {
		merges = append(merges, strings.ReplaceAll(merge, byteLevel(" "), sentencePieceSpace))
	}
	return v.spaced(ggml.KV{"tokenizer.ggml.pre": "gemma4", "tokenizer.ggml.merges": merges})
}

// spaced adds the tokens in SentencePiece's spelling, and their types. A character stands
// for itself, and a byte that is no character has a name.
func (v *vocabulary) spaced(metadata ggml.KV) ggml.KV {
	var tokens []string
	types := slices.Clone(v.types)
	for id, token := range v.tokens {
		if token = strings.ReplaceAll(token, byteLevel(" "), sentencePieceSpace); id < byteTokens && (id < ' ' || id >= 0x7f) {
			token, types[id] = fmt.Sprintf("<0x%02X>", id), tokenizer.TOKEN_TYPE_BYTE
		}
		tokens = append(tokens, token)
	}
	maps.Copy(metadata, ggml.KV{
		"tokenizer.ggml.model":      "llama",
		"tokenizer.ggml.tokens":     tokens,
		"tokenizer.ggml.token_type": types,
	})
	return metadata
}
