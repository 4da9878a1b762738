package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/progress"
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

// serveNumCtx is the context length with -serve.
const serveNumCtx = 16384

// serve runs a server for the user until ctx ends.
func serve(ctx context.Context, s settings, at place, stdout, stderr io.Writer) (err error) {
	steps := progress.New(stderr, show.StepNames)
	defer steps.Close()
	l, err := start(ctx, s, at, steps, stderr, lab.Options{Env: []string{"OLLAMA_HOST=" + s.host, fmt.Sprint("OLLAMA_CONTEXT_LENGTH=", serveNumCtx)}})
	if err != nil {
		return fmt.Errorf("%w\nIf %s is taken, choose another address with -host", err, s.host)
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	steps.Close()

	binary, err := ollamatest.FindBinary()
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, `
Ollama serves %[2]s at %[1]s and keeps its pages in %[4]s.

    OLLAMA_HOST=%[1]s %[3]s run %[2]s
    curl %[1]s/api/generate -d '{"model": "%[2]s", "prompt": "Package http"}'

Ctrl-C stops it%[5]s.
`, l.URL(), l.Model().Name, binary, at.root, afterwards(s))
	<-ctx.Done()
	return nil
}

// start chooses a model and starts a server with it.
func start(ctx context.Context, s settings, at place, steps *progress.Display, stderr io.Writer, o lab.Options) (l *lab.Lab, err error) {
	if err := steps.Do("prepare the model", func(*progress.Step) (_ string, err error) {
		o.Model, err = chooseModel(s.model, at.dir)
		return "", err
	}); err != nil {
		return nil, err
	}
	o.Root = at.root
	if s.log {
		o.Log = stderr
	}
	err = steps.Do("start Ollama with the KV tier on", func(*progress.Step) (_ string, err error) {
		l, err = lab.Start(ctx, o)
		return "", err
	})
	return l, err
}

// afterwards tells the user whether the pages stay.
func afterwards(s settings) string {
	if s.root == "" {
		return " and removes the pages; -root DIR keeps them"
	}
	return "; the pages stay"
}
