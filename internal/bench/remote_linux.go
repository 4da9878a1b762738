package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/mounts"
)

// remoteLab is a prompt whose pages are on a throttled mount, with a directory for the local
// tier.
type remoteLab struct {
	r      *rig
	tokens int
	prompt string
	first  lab.Answer // the answer to the prompt when it was computed
	local  string
	mount  *mounts.Throttled
}

// measureRemote measures a prompt whose pages are on a remote tier at several speeds: as the
// rates decide, with all pages restored, and with all tokens computed.
func measureRemote(ctx context.Context, r *rig) (_ any, err error) {
	source, mount := filepath.Join(r.dir, "remote"), filepath.Join(r.dir, "mount")
	for _, dir := range []string{source, mount} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, fmt.Errorf("making a remote tier: %w", err)
		}
	}
	l := &remoteLab{r: r, tokens: r.remoteTokens, prompt: r.prompt(r.remoteTokens), local: filepath.Join(r.dir, "local")}
	l.mount, err = mounts.NewThrottled(source, mount)
	if errors.Is(err, mounts.ErrUnavailable) {
		return leftOut(r, "remote", err.Error())
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, l.mount.Close(), os.RemoveAll(source), os.RemoveAll(l.local))
	}()
	// The later remote tier is the local one of a server that computes the prompt.
	if err := r.Step(fmt.Sprintf("remote, store %s tokens", show.Count(l.tokens)), func() (string, error) {
		return "", r.serve(ctx, lab.Options{Root: source}, func(server *lab.Lab) error {
			l.first, err = r.store(ctx, server, l.prompt, l.tokens, ttftAnswer)
			return err
		})
	}); err != nil {
		return nil, err
	}
	t := &Remote{Tokens: l.tokens, Points: make([]RemotePoint, len(r.remoteMBs))}
	for repetition := range r.repetitions {
		for i, mbs := range r.remoteMBs {
			p := &t.Points[i]
			p.BytesPerSecond = int64(mbs) * 1e6
			if err := r.Step(fmt.Sprintf("remote, %d MB/s, %d of %d", mbs, repetition+1, r.repetitions), func() (string, error) {
				err := l.once(ctx, p)
				return fmt.Sprintf("ours %s, restored %s, computed %s", last(p.Decided), last(p.Restored), last(p.Computed)), err
			}); err != nil {
				return nil, fmt.Errorf("at %d MB/s: %w", mbs, err)
			}
			p.Ratio = p.Decided.Median / min(p.Restored.Median, p.Computed.Median)
		}
	}
	return t, nil
}

// remoteFound is the speed in bytes per second above which pages must be found: on slower
// tiers a lookup may take longer than the server's limit.
const remoteFound = 10e6

// once is one repetition at one speed. Each request is the first of a server, and the local
// tier holds no page of it.
func (l *remoteLab) once(ctx context.Context, p *RemotePoint) error {
	if err := l.mount.Limit(p.BytesPerSecond); err != nil {
		return err
	}
	if err := os.RemoveAll(l.local); err != nil {
		return fmt.Errorf("emptying the local tier: %w", err)
	}
	var restored lab.Answer
	for _, of := range []struct {
		prompt string
		env    []string
		into   *measure.Series
		tokens *int
	}{
		{l.r.prompt(l.tokens), nil, &p.Computed, new(int)}, // teaches the rates of computing
		{l.prompt, nil, &p.Unknown, new(int)},              // the remote tier's rates are not known yet
		{l.prompt, nil, &p.Decided, &p.DecidedTokens},
		{l.prompt, []string{"OLLAMA_KV_TIER_TEST=1"}, &p.Restored, &p.RestoredTokens},
	} {
		a, err := l.ask(ctx, of.prompt, of.env...)
		if err != nil {
			return err
		}
		of.into.AddSeconds(a.Wait())
		*of.tokens, restored = a.Restored.Tokens, a
	}
	if restored.Restored.Tokens == 0 && p.BytesPerSecond >= remoteFound {
		return errors.New("nothing was restored although everything should be; the server's log says why")
	}
	if restored.Text != l.first.Text {
		return fmt.Errorf("the answer differs: %q, was %q", restored.Text, l.first.Text)
	}
	return nil
}

// ask starts a server, asks it once, and removes the pages of the local tier. The file of
// rates stays.
func (l *remoteLab) ask(ctx context.Context, prompt string, env ...string) (answer lab.Answer, err error) {
	env = append(env, "OLLAMA_KV_TIER_REMOTE="+l.mount.Dir, "OLLAMA_KV_TIER_WARM_GB=0") // pages read ahead would not be remote any more
	err = l.r.serve(ctx, lab.Options{Root: l.local, Env: env}, func(server *lab.Lab) error {
		if answer, err = l.r.ask(ctx, server, prompt, ttftAnswer); err != nil {
			return err
		}
		if reason := server.TierOff(); reason != "" {
			return fmt.Errorf("the KV tier is off: %s", reason)
		}
		return server.Unload(ctx, l.r.model.Name) // unloading saves the learned rates
	})
	if err == nil {
		err = l.dropPages()
	}
	return answer, err
}

func (l *remoteLab) dropPages() error {
	entries, err := os.ReadDir(l.local)
	if err != nil {
		return fmt.Errorf("emptying the local tier: %w", err)
	}
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), ".json") {
			continue
		}
		if err := os.RemoveAll(filepath.Join(l.local, entry.Name())); err != nil {
			return fmt.Errorf("emptying the local tier: %w", err)
		}
	}
	return nil
}
