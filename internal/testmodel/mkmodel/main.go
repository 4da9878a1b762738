// Command mkmodel writes a small GGUF model with random weights; see package
// testmodel for the uses of such a model.
//
//	go run ./internal/testmodel/mkmodel -arch gemma3
//	go run ./internal/testmodel/mkmodel -o model.gguf -layers 8 -embed 512
//
// An architecture alone is enough: each has a default size, and gives the file its name.
//
// With -arch recall, mkmodel writes the model that repeats the text after the earlier
// occurrence of the prompt's last word.
//
// With -modelfile, mkmodel also writes an Ollama Modelfile for "ollama create NAME -f FILE".
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvtier/kvtier/internal/testmodel"
)

func main() {
	switch err := run(os.Args[1:], os.Stdout, os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "mkmodel:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	var s testmodel.Shape
	flags := flag.NewFlagSet("mkmodel", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("o", "", "GGUF `file` to write; default ARCH.gguf")
	modelfile := flags.String("modelfile", "", "also write an Ollama Modelfile to this `file`")
	flags.StringVar(&s.Arch, "arch", testmodel.Shape{}.WithDefaults().Arch,
		"architecture, with its own defaults: "+strings.Join(testmodel.Architectures(), ", ")+", phi3 for llama.cpp, or "+recallArch)
	for _, dimension := range []struct {
		name, usage string
		value       *int
	}{
		{"layers", "transformer layers", &s.Layers},
		{"embed", "embedding width", &s.Embed},
		{"heads", "attention heads", &s.Heads},
		{"kv-heads", "key/value heads", &s.KVHeads},
		{"head-dim", "width of a head", &s.HeadDim},
		{"ffn", "feed-forward width; of mixtures, per expert", &s.FFN},
		{"vocab", "tokens in the vocabulary", &s.Vocab},
		{"context", "trained context length, in tokens", &s.Context},
		{"window", "tokens a sliding window reaches back or a chunk of attention has", &s.Window},
	} {
		flags.IntVar(dimension.value, dimension.name, 0, dimension.usage)
	}
	flags.Int64Var(&s.Seed, "seed", 1, "seed of the random weights")
	flags.BoolVar(&s.LlamaCpp, "llama.cpp", false, "write the file for llama.cpp, where Ollama's engine wants other names")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; every setting is a flag, see -help", flags.Arg(0))
	}
	if *out == "" {
		*out = s.Arch + ".gguf"
	}
	if s.Arch == recallArch {
		r, err := recall(flags, s)
		if err != nil {
			return err
		}
		return writeRecall(*out, *modelfile, r, stdout)
	}
	s = s.WithDefaults()
	if err := s.Validate(); err != nil {
		return err
	}
	return write(*out, *modelfile, s, "", func() error { return testmodel.Write(*out, s) }, stdout)
}

// write writes both files and prints a summary, with kind in front of the architecture.
func write(out, modelfile string, s testmodel.Shape, kind string, model func() error, stdout io.Writer) error {
	window := ""
	if s.Window > 0 {
		window = fmt.Sprintf(", window %d", s.Window)
	}
	fmt.Fprintf(stdout, "writing %s: %s%s, %d layers, embed %d, heads %d/%d × %d, ffn %d, vocab %d%s, seed %d\n",
		out, kind, s.Arch, s.Layers, s.Embed, s.Heads, s.KVHeads, s.HeadDim, s.FFN, s.Vocab, window, s.Seed)
	start := time.Now()
	if err := model(); err != nil {
		return err
	}
	elapsed := time.Since(start)
	info, err := os.Stat(out)
	if err != nil {
		return fmt.Errorf("checking the written model: %w", err)
	}
	fmt.Fprintf(stdout, "wrote %.1fM parameters, %.1f MB in %.1f s; f16 K/V: %d bytes per token\n",
		float64(s.Parameters())/1e6, float64(info.Size())/1e6, elapsed.Seconds(), s.KVBytesPerToken())
	if modelfile == "" {
		return nil
	}
	gguf, err := filepath.Abs(out)
	if err != nil {
		return fmt.Errorf("finding the absolute path of %s: %w", out, err)
	}
	if err := os.WriteFile(modelfile, []byte(testmodel.Modelfile(gguf)), 0o644); err != nil {
		return fmt.Errorf("writing the Modelfile: %w", err)
	}
	return nil
}
