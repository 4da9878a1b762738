package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/ollamasrc"
)

// errDiffers fails a demo whose output has given the reason already.
var errDiffers = errors.New("the outputs differ")

func main() { show.Main(run) }

// settings are the command line.
type settings struct {
	model  string
	text   string
	root   string
	host   string
	tokens int
	answer int
	serve  bool
	json   bool
	log    bool
}

// trained reports whether the model is the demo's own.
func (s settings) trained() bool { return s.model == "" }

const (
	defaultTokens = 8000
	trainedTokens = 4000 // default with the trained model, which knows contexts of 4,608
	tokensMin     = 512  // two pages of tokens
	defaultAnswer = 32
	defaultHost   = "127.0.0.1:11435" // next to Ollama's own port, which may be in use
)

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.model, "model", os.Getenv("MODEL"), "`name` of a model that Ollama has, or a GGUF file; default $MODEL, else a small trained one")
	flags.StringVar(&s.text, "text", "", "text `file` to read; default the documents of this repository and of Ollama, after a text that the trained model has not seen")
	flags.StringVar(&s.root, "root", "", "`directory` to keep pages in; default a temporary one")
	flags.StringVar(&s.host, "host", defaultHost, "`address` that -serve listens on")
	flags.IntVar(&s.tokens, "tokens", 0, fmt.Sprintf("length of the prompt, about; default %d, %d with the trained model", defaultTokens, trainedTokens))
	flags.IntVar(&s.answer, "answer", defaultAnswer, "length of an answer, in tokens")
	flags.BoolVar(&s.serve, "serve", false, "serve the model until Ctrl-C instead of showing anything")
	flags.BoolVar(&s.json, "json", false, "print the result as JSON")
	flags.BoolVar(&s.log, "log", false, "print the log of the server, too")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if s.tokens == 0 {
		s.tokens = defaultTokens
		if s.trained() {
			s.tokens = trainedTokens
		}
	}
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q; every setting is a flag, see -help", flags.Arg(0))
	case s.tokens < tokensMin:
		return s, fmt.Errorf("-tokens %d: at least %d, or there is little to restore", s.tokens, tokensMin)
	case s.answer < 1:
		return s, fmt.Errorf("-answer %d: at least one token is needed to compare", s.answer)
	}
	return s, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}
	repository, dir, err := ollamasrc.TempDir("demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	at := place{repository: repository, dir: dir, root: filepath.Join(dir, "pages")}
	if s.root != "" {
		if at.root, err = filepath.Abs(s.root); err != nil {
			return fmt.Errorf("finding the absolute path of %s: %w", s.root, err)
		}
	}
	if s.serve {
		return serve(ctx, s, at, stdout, stderr)
	}
	return demonstrate(ctx, s, at, stdout, stderr)
}

// place holds the directories of a demo.
type place struct {
	repository string
	dir        string // temporary: the model and the server's own files
	root       string // the pages
}
