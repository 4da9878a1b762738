// Command recall-prompts writes the questions of scripts/gpu-suite.sh to a recall model: a line per
// question, with the answer, a tab, and the body of a request to /api/generate.
//
//	go run ./internal/testmodel/mkmodel -arch recall -o recall.gguf
//	go run ./internal/testmodel/recall-prompts -tokens 30000 -o prompts.tsv
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/kvtier/kvtier/internal/testmodel"
)

func main() {
	tokens := flag.Int("tokens", 30000, "tokens of a prompt")
	out := flag.String("o", "", "`file` to write (required)")
	flag.Parse()
	if err := run(*out, *tokens); err != nil {
		fmt.Fprintln(os.Stderr, "recall-prompts:", err)
		os.Exit(1)
	}
}

func run(out string, tokens int) error {
	if out == "" {
		return fmt.Errorf("no output file; name one with -o FILE")
	}
	// One needle at the prompt's beginning, one in its middle, one near its end.
	questions, err := testmodel.RecallPrompts(1, tokens, 10, tokens/2, tokens-200)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, q := range questions {
		body, err := json.Marshal(map[string]any{
			"model": "recall", "prompt": q.Prompt, "raw": true, "stream": false,
			"options": map[string]any{
				"temperature": 0, "num_predict": testmodel.RecallAnswerTokens,
				"num_ctx": tokens + 1024,
			},
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%s\t%s\n", q.Answer, body)
	}
	return os.WriteFile(out, []byte(lines.String()), 0o644)
}
