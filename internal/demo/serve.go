package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/progress"
)

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
