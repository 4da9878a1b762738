package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/table"
)

// Warm is time to the first token of the first prompt after kill -9 and with an
// empty page cache, with pages read ahead and without.
type Warm struct {
	Tokens   int            `json:"tokens"`
	SameSlot measure.Series `json:"same_slot"` // the time without a kill
	Off      WarmRun        `json:"off"`       // OLLAMA_KV_TIER_WARM_GB=0
	On       WarmRun        `json:"on"`
}

// WarmRun is one setting.
type WarmRun struct {
	Loaded measure.Series `json:"loaded"` // the model was loaded before the prompt
	Loads  measure.Series `json:"loads"`  // the prompt loads the model, and the load counts
}

// errWarmNeedsRoot is the reason for leaving out warm.
var errWarmNeedsRoot = errors.New("the page cache cannot be emptied; it takes Linux and root, and no -quick")

// measureWarm asks for a stored prompt after a restart, with reading ahead on and
// off in turns.
func (b *bench) measureWarm(ctx context.Context) error {
	if !b.canDrop {
		step := b.steps.Step("warm")
		step.End("left out: "+errWarmNeedsRoot.Error(), nil)
		return nil
	}
	r := &Warm{Tokens: b.settings.restoreTokens}
	b.report.Warm = r
	root := filepath.Join(b.dir, "pages")
	defer os.RemoveAll(root)
	prompt := b.prompt(r.Tokens)
	for repetition := range b.settings.repetitions {
		for _, side := range []struct {
			gb  string
			run *WarmRun
		}{{"0", &r.Off}, {"", &r.On}} {
			step := b.steps.Step(fmt.Sprintf("warm, WARM_GB=%q, %d of %d", side.gb, repetition+1, b.settings.repetitions))
			if err := b.warmOnce(ctx, r, side.run, root, side.gb, prompt); err != nil {
				step.End("", err)
				return err
			}
			last := side.run.Loaded.Values[repetition]
			step.End(show.Seconds(toDuration(last)), nil)
		}
	}
	return nil
}

// warmOnce measures one setting: first in the slot that holds the prompt, then after two
// restarts.
func (b *bench) warmOnce(ctx context.Context, r *Warm, run *WarmRun, root, gb, prompt string) (err error) {
	l, err := b.start(ctx, lab.Options{Model: b.model, Root: root, NumCtx: b.numCtx, Env: []string{"OLLAMA_KV_TIER_WARM_GB=" + gb}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if b.report.Versions.Kvtier, err = l.Version(ctx); err != nil {
		return err
	}
	if _, err := b.ask(ctx, l, prompt, ttftAnswer); err != nil {
		return err
	}
	if err := l.Settle(ctx, lab.PagesOf(r.Tokens)); err != nil {
		return err
	}
	held, err := b.ask(ctx, l, prompt, ttftAnswer)
	if err != nil {
		return err
	}
	r.SameSlot.AddSeconds(held.Wait())
	for _, loaded := range []bool{true, false} {
		if err := l.KillServer(); err != nil {
			return err
		}
		if err := measure.DropCaches(); err != nil {
			return err
		}
		if err := l.Restart(ctx); err != nil {
			return err
		}
		if loaded {
			if err := b.loadModel(ctx, l, gb); err != nil {
				return err
			}
		}
		answer, err := b.ask(ctx, l, prompt, ttftAnswer)
		switch {
		case err != nil:
			return err
		case answer.Restored.Tokens == 0:
			return errors.New("nothing was restored after kill -9; the server's log (-log) says why")
		case answer.Text != held.Text:
			return fmt.Errorf("the answer after kill -9 differs: %q, was %q", answer.Text, held.Text)
		case loaded:
			run.Loaded.AddSeconds(answer.TTFT)
		default:
			run.Loads.AddSeconds(answer.TTFT)
		}
	}
	return nil
}

// loadModel loads the model, as a client does before a chat, and waits until conversations
// are read ahead, if the setting asks for it.
func (b *bench) loadModel(ctx context.Context, l *lab.Lab, gb string) error {
	mark := l.LogMark()
	if _, err := b.askShort(ctx, l, b.prompt(shortPrompt)); err != nil {
		return err
	}
	line := "kv tier: on"
	if gb != "0" {
		line = "kv tier: read ahead"
	}
	return l.WaitLogFrom(ctx, mark, line)
}

func (r *Warm) print(w io.Writer) {
	fmt.Fprintf(w, "\nTime to first token of %s tokens, the first prompt after kill -9 with an empty page cache, %d times (same slot, nothing lost: %s)\n\n",
		show.Count(r.Tokens), len(r.On.Loaded.Values), seconds(r.SameSlot))
	table.Print(w, []string{"read ahead", "model loaded before", "the prompt loads the model"}, [][]string{
		{"off", seconds(r.Off.Loaded), seconds(r.Off.Loads)},
		{"on", seconds(r.On.Loaded), seconds(r.On.Loads)},
	})
}
