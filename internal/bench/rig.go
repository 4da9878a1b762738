package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// rig is what parts measure with: servers of a model, and prompts for it.
type rig struct {
	settings
	show.Steps
	dir       string // temporary: the model and the pages
	serverLog io.Writer
	canDrop   bool // the page cache may be emptied
	versions  *Versions

	model  lab.Model // written when a part needs it
	numCtx int
	seed   int64 // of the latest prompt
}

const (
	contextSlack = 512 // room for the longest answer
	contextStep  = 1024

	// shortPrompt is the length in tokens of a prompt that costs almost nothing to compute.
	shortPrompt = 8
)

// contextFor is the size of a context for prompts of so many tokens.
func contextFor(tokens int) int {
	return (tokens + contextSlack + contextStep - 1) / contextStep * contextStep
}

// serve runs a server while use does. Without another model or context, they are those of the rig.
func (r *rig) serve(ctx context.Context, o lab.Options, use func(*lab.Lab) error) (err error) {
	o.Log = r.serverLog
	if o.Model.Name == "" {
		o.Model = r.model
	}
	if o.NumCtx == 0 {
		o.NumCtx = r.numCtx
	}
	l, err := lab.Start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	version, err := l.API().Version(ctx)
	if err != nil {
		return fmt.Errorf("asking the server for its version: %w", err)
	}
	if o.Binary == "" {
		r.versions.Kvtier = version
	} else {
		r.versions.Stock = version
	}
	return use(l)
}

// stock runs a server without the tier, unpatched if there is one.
func (r *rig) stock(ctx context.Context, o lab.Options, use func(*lab.Lab) error) error {
	o.Binary = r.settings.stock
	return r.serve(ctx, o, func(l *lab.Lab) error {
		if r.versions.StockIsPatched = o.Binary == ""; r.versions.StockIsPatched {
			r.versions.Stock = r.versions.Kvtier
		}
		if err := r.load(ctx, l); err != nil {
			return err
		}
		return use(l)
	})
}

// fresh runs a server with an empty store, whose directory use gets.
func (r *rig) fresh(ctx context.Context, o lab.Options, use func(l *lab.Lab, root string) error) (err error) {
	if o.Root, err = os.MkdirTemp(r.dir, "pages-"); err != nil {
		return fmt.Errorf("making a directory for pages: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.Root)) }()
	return r.serve(ctx, o, func(l *lab.Lab) error { return use(l, o.Root) })
}

// ours does as fresh, and loads the model before use.
func (r *rig) ours(ctx context.Context, o lab.Options, use func(l *lab.Lab, root string) error) error {
	return r.fresh(ctx, o, func(l *lab.Lab, root string) error {
		if err := r.load(ctx, l); err != nil {
			return err
		}
		if reason := l.TierOff(); reason != "" {
			return fmt.Errorf("the KV tier is off: %s", reason)
		}
		return use(l, root)
	})
}

// load loads the model of a server.
func (r *rig) load(ctx context.Context, l *lab.Lab) error {
	_, err := r.askShort(ctx, l, r.prompt(shortPrompt))
	return err
}

// prompt returns words of the given number of tokens that no earlier prompt had.
func (r *rig) prompt(tokens int) string {
	r.seed++
	text, err := testmodel.Prompt(r.shape, tokens, r.seed)
	if err != nil {
		panic(err) // a model of this shape was written before
	}
	return text
}

// repeatsMost is how often Ollama lets a model repeat a token before it ends the answer, without a last
// message. A model with random weights may do so at any time, unless its tokens are drawn.
const repeatsMost = 30

// ask sends a raw prompt.
func (r *rig) ask(ctx context.Context, l *lab.Lab, prompt string, tokens int) (lab.Answer, error) {
	return l.Ask(ctx, lab.Question{Prompt: prompt, Tokens: tokens, Raw: true, Drawn: tokens > repeatsMost})
}

// askShort sends a private prompt, of which nothing is stored.
func (r *rig) askShort(ctx context.Context, l *lab.Lab, prompt string) (lab.Answer, error) {
	return l.Ask(ctx, lab.Question{Prompt: prompt, Tokens: 1, Raw: true, Private: true})
}

// store asks a prompt whose pages are the first in a store, and waits until they are written: the
// writes would slow down the next request.
func (r *rig) store(ctx context.Context, l *lab.Lab, prompt string, tokens, answer int) (lab.Answer, error) {
	a, err := r.ask(ctx, l, prompt, answer)
	if err == nil {
		err = l.Settle(ctx, lab.PagesOf(tokens))
	}
	return a, err
}

// restart kills server and runner with SIGKILL, calls a function while nothing runs, and starts the
// server again.
func restart(ctx context.Context, l *lab.Lab, meanwhile func() error) error {
	if err := l.KillServer(); err != nil {
		return err
	}
	if err := meanwhile(); err != nil {
		return err
	}
	return l.Restart(ctx)
}

// killed asks a prompt again after [restart].
func (r *rig) killed(ctx context.Context, l *lab.Lab, prompt string, before lab.Answer, meanwhile func() error) (lab.Answer, error) {
	if err := restart(ctx, l, meanwhile); err != nil {
		return lab.Answer{}, err
	}
	return r.again(ctx, l, prompt, before)
}

// again asks a prompt that was answered before, of which something must come from pages.
func (r *rig) again(ctx context.Context, l *lab.Lab, prompt string, before lab.Answer) (lab.Answer, error) {
	a, err := r.ask(ctx, l, prompt, ttftAnswer)
	switch {
	case err != nil:
		return a, err
	case a.Restored.Tokens == 0:
		return a, errors.New("nothing was restored after kill -9; the server's log (-log) says why")
	case a.Text != before.Text:
		return a, fmt.Errorf("the answer after kill -9 differs: %q, was %q", a.Text, before.Text)
	}
	return a, nil
}

// leftOut is the result of a part that this machine cannot run.
func leftOut(r *rig, part, why string) (any, error) {
	r.Display.Step(part).End("left out: "+why, nil)
	return nil, nil
}
