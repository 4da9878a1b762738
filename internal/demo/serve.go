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

// serveNumCtx is the default context length with -serve.
const serveNumCtx = 16384

// serve runs a server for the user until ctx ends.
func serve(ctx context.Context, s settings, at place, stdout, stderr io.Writer) (err error) {
	steps := progress.New(stderr, show.StepNames)
	defer steps.Close()
	step := steps.Step("prepare the model")
	model, err := chooseModel(s.model, at.dir)
	step.End("", err)
	if err != nil {
		return err
	}
	if s.numCtx == 0 {
		s.numCtx = serveNumCtx
	}
	o := lab.Options{
		Model: model, Root: at.root,
		Env: []string{"OLLAMA_HOST=" + s.host, fmt.Sprint("OLLAMA_CONTEXT_LENGTH=", s.numCtx)},
	}
	if s.log {
		o.Log = stderr
	}
	step = steps.Step("start Ollama with the KV tier on")
	l, err := lab.Start(ctx, o)
	step.End("", err)
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
`, l.URL(), model.Name, binary, at.root, afterwards(s))
	<-ctx.Done()
	return nil
}

// afterwards tells the user whether the pages stay.
func afterwards(s settings) string {
	if s.root == "" {
		return " and removes the pages; -root DIR keeps them"
	}
	return "; the pages stay"
}
