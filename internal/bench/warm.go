package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
)

// Warm is time to the first token of the first prompt after kill -9 and with an
// empty page cache, with pages read ahead and without.
type Warm struct {
	Tokens   int            `json:"tokens"`
	SameSlot measure.Series `json:"same_slot" unit:"s"` // the time without a kill
	Off      WarmRun        `json:"off" unit:"s"`       // OLLAMA_KV_TIER_WARM_GB=0
	On       WarmRun        `json:"on" unit:"s"`
}

// WarmRun is one setting.
type WarmRun struct {
	Loaded measure.Series `json:"loaded"` // the model was loaded before the prompt
	Loads  measure.Series `json:"loads"`  // the prompt loads the model, and the load counts
}

// measureWarm asks for a stored prompt after a restart, with reading ahead on and off in turns.
func measureWarm(ctx context.Context, r *rig) (any, error) {
	if !r.canDrop {
		return leftOut(r, "warm", "the page cache cannot be emptied; it takes Linux and root, and no -quick")
	}
	t := &Warm{Tokens: r.restoreTokens}
	root := filepath.Join(r.dir, "pages-warm")
	defer os.RemoveAll(root)
	prompt := r.prompt(t.Tokens)
	side := func(run *WarmRun, gb, line string) func() error {
		o := lab.Options{Root: root, Env: []string{"OLLAMA_KV_TIER_WARM_GB=" + gb}}
		return func() error {
			return r.serve(ctx, o, func(l *lab.Lab) error { return t.once(ctx, r, l, run, prompt, line) })
		}
	}
	off, on := side(&t.Off, "0", "kv tier: on"), side(&t.On, "", "kv tier: read ahead")
	err := r.Repeat("warm", r.repetitions, func(int) (string, error) {
		err := measure.InTurns(0, off, on)
		return fmt.Sprintf("off %s, on %s", last(t.Off.Loaded), last(t.On.Loaded)), err
	})
	return t, err
}

// once measures one setting: first in the slot that holds the prompt, then after two restarts. line is
// in the log when a loaded model has read ahead what it will.
func (t *Warm) once(ctx context.Context, r *rig, l *lab.Lab, run *WarmRun, prompt, line string) error {
	if _, err := r.store(ctx, l, prompt, t.Tokens, ttftAnswer); err != nil {
		return err
	}
	held, err := r.ask(ctx, l, prompt, ttftAnswer)
	if err != nil {
		return err
	}
	t.SameSlot.AddSeconds(held.Wait())
	for _, loaded := range []bool{true, false} {
		if err := restart(ctx, l, measure.DropCaches); err != nil {
			return err
		}
		if loaded { // as a client does before a chat
			mark := l.LogMark()
			if err := r.load(ctx, l); err != nil {
				return err
			}
			if err := l.WaitLogFrom(ctx, mark, line); err != nil {
				return err
			}
		}
		answer, err := r.again(ctx, l, prompt, held)
		if err != nil {
			return err
		}
		if loaded {
			run.Loaded.AddSeconds(answer.TTFT)
		} else {
			run.Loads.AddSeconds(answer.TTFT)
		}
	}
	return nil
}
