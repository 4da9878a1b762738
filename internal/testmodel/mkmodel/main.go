// Command mkmodel writes a small GGUF model with random weights, for Ollama; see package
// testmodel for the uses of such a model.
//
//	go run ./internal/testmodel/mkmodel -arch gemma3
//	go run ./internal/testmodel/mkmodel -o model.gguf -modelfile Modelfile
//
// With -arch recall, mkmodel writes the model that repeats the text after the earlier
// occurrence of the prompt's last word.
//
// With -modelfile, mkmodel also writes an Ollama Modelfile for "ollama create NAME -f FILE".
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/internal/testmodel"
)

// recallArch is the value of -arch for the recall model. The architecture in its file is
// qwen3.
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
	arch := flags.String("arch", "qwen3", "architecture: "+strings.Join(testmodel.Architectures(), ", ")+", or "+recallArch)
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
		err = testmodel.Write(gguf, testmodel.Shape{Arch: *arch, Seed: 1})
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "wrote %s\n", gguf)
	if *modelfile == "" {
		return nil
	}
	if err := os.WriteFile(*modelfile, []byte(testmodel.Modelfile(gguf)), 0o644); err != nil {
		return fmt.Errorf("writing the Modelfile: %w", err)
	}
	return nil
}
