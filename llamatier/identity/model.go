package identity

import (
	"fmt"

	"github.com/ollama/ollama/fs/gguf"

	"github.com/kvtier/kvtier/internal/sizing"
)

// Model is the part of a model's file that decides how its slots are kept.
type Model struct {
	Window   int  // positions that a window keeps; 0 without one
	LongRope bool // rows depend on the size of the context

	// Infill are the tokens that llama-server writes into a text with a gap, by their names in keys: "pre", "suf"
	// and "mid" before the three parts, "rep" and "sep" before a repository and a file. A model may lack any.
	Infill map[string]int32

	arch  string
	types []int64 // of the tokens
}

// controlType is the type of control tokens, in llama.cpp's LLAMA_TOKEN_TYPE_CONTROL.
const controlType = 3

// Control reports whether a token is a control token.
func (m Model) Control(token int32) bool {
	return token >= 0 && int(token) < len(m.types) && m.types[token] == controlType
}

// unstorable has the architectures whose slots cannot be stored, and why. Architectures that are not known
// to be so are tried.
var unstorable = map[string]string{
	"llama4": "its attention ends at chunks of tokens, whose rows are not stored",
	"mamba":  noRows, "mamba2": noRows, "rwkv6": noRows, "rwkv6qwen2": noRows, "rwkv7": noRows, "arwkv7": noRows,
}

const noRows = "it keeps no rows of single tokens"

// Unstorable returns the reason why slots of the model cannot be stored, or "".
func (m Model) Unstorable() string { return unstorable[m.arch] }

// ReadModel reads the head of a GGUF file.
func ReadModel(path string) (m Model, err error) {
	f, err := openModel(path)
	if err != nil {
		return m, fmt.Errorf("read the model's head: %w", err)
	}
	defer f.Close()
	m.arch = f.KeyValue("general.architecture").String()
	m.Window = int(f.KeyValue("attention.sliding_window").Uint())
	m.LongRope = f.TensorInfo("rope_factors_long.weight").Name != "" || f.TensorInfo("blk.0.rope_factors_long.weight").Name != ""
	m.types = f.KeyValue("tokenizer.ggml.token_type").Ints()
	m.Infill = make(map[string]int32)
	all := f.KeyValue("tokenizer.ggml.tokens").Strings()
	for token, text := range all {
		if name, known := infillTexts[text]; known {
			m.Infill[name] = int32(token) // the last of equal texts
		}
	}
	for _, k := range infillKeys {
		if token := f.KeyValue("tokenizer.ggml." + k.key + "_token_id"); token.Valid() && token.Uint() < uint64(len(all)) {
			m.Infill[k.name] = int32(token.Uint())
		}
	}
	return m, nil
}

// infillKeys are the keys of the tokens of Model.Infill, the older ones behind those of today, as llama.cpp reads
// them.
var infillKeys = []struct{ key, name string }{
	{"fim_pre", "pre"}, {"fim_suf", "suf"}, {"fim_mid", "mid"}, {"fim_rep", "rep"}, {"fim_sep", "sep"},
	{"prefix", "pre"}, {"suffix", "suf"}, {"middle", "mid"},
}

// infillTexts are the texts by which llama.cpp finds the tokens of Model.Infill that the file does not name.
var infillTexts = map[string]string{
	"<|fim_prefix|>": "pre", "<fim-prefix>": "pre", "<fim_prefix>": "pre", "<｜fim▁begin｜>": "pre", "<PRE>": "pre",
	"▁<PRE>": "pre", "<|code_prefix|>": "pre", "<|prefix|>": "pre",
	"<|fim_suffix|>": "suf", "<fim-suffix>": "suf", "<fim_suffix>": "suf", "<｜fim▁hole｜>": "suf", "<SUF>": "suf",
	"▁<SUF>": "suf", "<|code_suffix|>": "suf", "<|suffix|>": "suf",
	"<|fim_middle|>": "mid", "<fim-middle>": "mid", "<fim_middle>": "mid", "<｜fim▁end｜>": "mid", "<MID>": "mid",
	"▁<MID>": "mid", "<|code_middle|>": "mid", "<|middle|>": "mid",
	"<|fim_repo|>": "rep", "<|repo_name|>": "rep", "<fim-repo>": "rep", "<REPO>": "rep", "<reponame>": "rep",
	"<|file_sep|>": "sep",
}

// openModel opens a GGUF file whose head does not lie about lengths: upstream's reader believes
// them, and a hostile file would end the daemon before llama-server can refuse it.
func openModel(path string) (*gguf.File, error) {
	if err := sizing.CheckFile(path); err != nil {
		return nil, err
	}
	return gguf.Open(path)
}

// invocation is the key of the tokens behind which an adapter begins to act. Those tokens are
// looked for in each prompt as a whole, so that a row depends on tokens behind its own.
const invocation = "adapter.alora.invocation_tokens"

// wholly returns an error unless an adapter acts on every token of a prompt.
func wholly(path string) error {
	f, err := openModel(path)
	if err != nil {
		return fmt.Errorf("read the head of an adapter: %w", err)
	}
	defer f.Close()
	n := 0
	for _, kv := range f.KeyValues() {
		if kv.Key == invocation {
			return fmt.Errorf("the adapter %s acts behind certain tokens only", path)
		}
		n++
	}
	if n != f.NumKeyValues() {
		return fmt.Errorf("read the head of the adapter %s: only %d of %d values can be read", path, n, f.NumKeyValues())
	}
	return nil
}
