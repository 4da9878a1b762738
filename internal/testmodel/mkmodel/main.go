// Command mkmodel writes a small GGUF model with random weights, for Ollama; see package
// testmodel for the uses of such a model.
//
//	go run ./internal/testmodel/mkmodel -arch gemma3
//	go run ./internal/testmodel/mkmodel -o model.gguf -modelfile Modelfile
//	go run ./internal/testmodel/mkmodel -arch llama -layers 32 -embed 4096 -heads 32 -kv-heads 8 -head-dim 128 -ffn 14336
//
// The last one is in the shape of Llama 3.1 8B; a size that is not given is the architecture's default.
//
// With -arch recall, mkmodel writes the model that repeats the text after the earlier occurrence of the
// prompt's last word. With -questions, mkmodel also writes the questions that scripts/gpu-suite.sh asks that
// model: a line per question, with the answer, a tab, and the body of a request to /api/generate.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/internal/testmodel"
)

// recallArch is the value of -arch for the recall model. The architecture in its file is qwen3.
const recallArch = "recall"

func main() {
	switch err := run(os.Args[1:], os.Stdout, os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "mkmodel:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("mkmodel", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("o", "", "GGUF `file` to write; default ARCH.gguf")
	modelfile := flags.String("modelfile", "", "also write an Ollama Modelfile to this `file`")
	questions := flags.String("questions", "", "also write questions to a recall model to this `file`")
	tokens := flags.Int("tokens", 30000, "tokens of a question")
	arch := flags.String("arch", "qwen3", "architecture: "+strings.Join(testmodel.Architectures(), ", ")+", or "+recallArch)
	shape := testmodel.Shape{Seed: 1}
	flags.IntVar(&shape.Layers, "layers", 0, "layers")
	flags.IntVar(&shape.Embed, "embed", 0, "width of the residual stream")
	flags.IntVar(&shape.Heads, "heads", 0, "query heads")
	flags.IntVar(&shape.KVHeads, "kv-heads", 0, "key/value heads")
	flags.IntVar(&shape.HeadDim, "head-dim", 0, "width of a head")
	flags.IntVar(&shape.FFN, "ffn", 0, "width of the feed-forward layer")
	flags.BoolVar(&shape.Drafts, "drafts", false, "a layer that drafts tokens, in qwen35 with -llama-cpp")
	flags.BoolVar(&shape.Infill, "infill", false, "tokens of texts with a gap, for llama-server's /infill")
	flags.BoolVar(&shape.LlamaCpp, "llama-cpp", false, "names and keys as llama.cpp wants them")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; every setting is a flag, see -help", flags.Arg(0))
	}
	gguf, err := filepath.Abs(cmp.Or(*out, *arch+".gguf"))
	if err != nil {
		return fmt.Errorf("finding the absolute path of the model: %w", err)
	}
	if *arch == recallArch {
		err = testmodel.WriteRecall(gguf, testmodel.Recall{})
	} else {
		shape.Arch = *arch
		err = testmodel.Write(gguf, shape)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "wrote %s\n", gguf)
	if *questions != "" {
		if err := writeQuestions(*questions, *tokens); err != nil {
			return err
		}
	}
	if *modelfile == "" {
		return nil
	}
	return os.WriteFile(*modelfile, []byte(testmodel.Modelfile(gguf)), 0o644)
}

// writeQuestions writes questions with a needle at a prompt's beginning, in its middle, and near its end.
func writeQuestions(path string, tokens int) error {
	questions, err := testmodel.RecallPrompts(1, tokens, 10, tokens/2, tokens-200)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, q := range questions {
		body, _ := json.Marshal(map[string]any{
			"model": "recall", "prompt": q.Prompt, "raw": true, "stream": false,
			"options": map[string]any{"temperature": 0, "num_predict": testmodel.RecallAnswerTokens, "num_ctx": tokens + 1024},
		}) // it has no value that could fail
		fmt.Fprintf(&lines, "%s\t%s\n", q.Answer, body)
	}
	return os.WriteFile(path, []byte(lines.String()), 0o644)
}
