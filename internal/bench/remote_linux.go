package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/mounts"
)

// remoteLab is a prompt whose pages are on a throttled mount, with a directory for the local
// tier.
type remoteLab struct {
	b      *bench
	r      *Remote
	prompt string
	first  lab.Answer // the answer to the prompt when it was computed
	local  string
	mount  *mounts.Throttled
}

// measureRemote measures a prompt whose pages are on a remote tier at several speeds: as the
// rates decide, with all pages restored, and with all tokens computed.
func (b *bench) measureRemote(ctx context.Context) (err error) {
	l := &remoteLab{b: b, r: &Remote{Tokens: b.settings.remoteTokens}, prompt: b.prompt(b.settings.remoteTokens)}
	l.local = filepath.Join(b.dir, "local")
	source, mount := filepath.Join(b.dir, "remote"), filepath.Join(b.dir, "mount")
	for _, dir := range []string{source, mount} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("making a remote tier: %w", err)
		}
	}
	l.mount, err = mounts.NewThrottled(source, mount)
	if errors.Is(err, mounts.ErrUnavailable) {
		b.steps.Step("remote").End(fmt.Sprintf("left out: %v", err), nil)
		return nil
	}
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, l.mount.Close(), os.RemoveAll(source), os.RemoveAll(l.local))
	}()
	b.report.Remote = l.r
	if err := l.store(ctx, source); err != nil {
		return err
	}
	l.r.Points = make([]RemotePoint, len(b.settings.remoteMBs))
	for repetition := range b.settings.repetitions {
		for i, mbs := range b.settings.remoteMBs {
			step := b.steps.Step(fmt.Sprintf("remote, %d MB/s, %d of %d", mbs, repetition+1, b.settings.repetitions))
			p := &l.r.Points[i]
			p.BytesPerSecond = int64(mbs) * 1e6
			if err := l.once(ctx, p); err != nil {
				step.End("", err)
				return fmt.Errorf("at %d MB/s: %w", mbs, err)
			}
			step.End(fmt.Sprintf("ours %s, restored %s, computed %s", lastSeconds(p.Decided), lastSeconds(p.Restored), lastSeconds(p.Computed)), nil)
		}
	}
	for i := range l.r.Points {
		p := &l.r.Points[i]
		p.Ratio = p.Decided.Median / min(p.Restored.Median, p.Computed.Median)
	}
	return nil
}

// store computes the prompt on a server whose local tier is the later remote tier.
func (l *remoteLab) store(ctx context.Context, root string) (err error) {
	step := l.b.steps.Step(fmt.Sprintf("remote, store %s tokens", show.Count(l.r.Tokens)))
	defer func() { step.End("", err) }()
	s, err := l.b.startOurs(ctx, root, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if l.first, err = l.b.ask(ctx, s, l.prompt, ttftAnswer); err != nil {
		return err
	}
	return s.Settle(ctx, lab.PagesOf(l.r.Tokens))
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
	// Computing a new prompt teaches the rates of computing.
	computed, err := l.ask(ctx, l.b.prompt(l.r.Tokens))
	if err != nil {
		return err
	}
	p.Computed.AddSeconds(computed.Wait())
	// The remote tier's rates are not known yet.
	unknown, err := l.ask(ctx, l.prompt)
	if err != nil {
		return err
	}
	p.Unknown.AddSeconds(unknown.Wait())
	decided, err := l.ask(ctx, l.prompt)
	if err != nil {
		return err
	}
	p.Decided.AddSeconds(decided.Wait())
	p.DecidedTokens = decided.Restored.Tokens
	restored, err := l.ask(ctx, l.prompt, "OLLAMA_KV_TIER_TEST=1")
	if err != nil {
		return err
	}
	if restored.Restored.Tokens == 0 && p.BytesPerSecond >= remoteFound {
		return errors.New("nothing was restored although everything should be; the server's log says why")
	}
	p.Restored.AddSeconds(restored.Wait())
	p.RestoredTokens = restored.Restored.Tokens
	if restored.Text != l.first.Text {
		return fmt.Errorf("the answer differs: %q, was %q", restored.Text, l.first.Text)
	}
	return nil
}

// ask starts a server, asks it once, and removes the pages of the local tier. The file of
// rates stays.
func (l *remoteLab) ask(ctx context.Context, prompt string, env ...string) (answer lab.Answer, err error) {
	s, err := l.b.start(ctx, lab.Options{
		Model: l.b.model, Root: l.local, NumCtx: l.b.numCtx,
		Env: append(env, "OLLAMA_KV_TIER_REMOTE="+l.mount.Dir, "OLLAMA_KV_TIER_WARM_GB=0"), // pages read ahead would not be remote any more
	})
	if err != nil {
		return answer, err
	}
	answer, err = l.b.ask(ctx, s, prompt, ttftAnswer)
	if reason := s.TierOff(); err == nil && reason != "" {
		err = fmt.Errorf("the KV tier is off: %s", reason)
	}
	if err == nil {
		err = s.Unload(ctx, l.b.model.Name) // unloading saves the learned rates
	}
	err = errors.Join(err, s.Close())
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
