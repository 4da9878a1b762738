package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/internal/soak"
)

// recurrent are the architectures with recurrent state.
var recurrent = []string{"lfm2", "nemotron_h", "qwen35", "qwen3next"}

// countRestored counts the requests of a round with a restore, and requires one after an
// unload and after a kill with stored pages: all conversations begin with the same message,
// which is stored by then. A model with recurrent state can go on from that message only
// with the state after it.
func (p *soakPlay) countRestored(round soak.Round, mark int) {
	restored := len(restoredLine.FindAllString(p.tiered.Logs()[mark:], -1))
	p.restored += restored
	forgotten := round.Event == soak.Unload || round.Event == soak.KillStored
	chats := 0
	for _, r := range round.Requests {
		// A client that leaves before the first token may leave before the restore.
		if r.Kind != soak.Document && (r.Kind != soak.GiveUp || slices.Max(r.Leave) > 0) {
			chats++
		}
	}
	if forgotten && chats > 0 && restored == 0 && p.eager && p.isTiered() && !slices.Contains(recurrent, p.arch) {
		p.check(errors.New("nothing was restored"), "after event %q", round.Event)
	}
}

// isTiered reports whether tiering supports the model.
func (p *soakPlay) isTiered() bool { return strings.Contains(p.tiered.Logs(), "kv tier: on") }

// trouble matches log lines of a crash or a fault of the store, which fail the soak.
var trouble = regexp.MustCompile(`(?m)^(panic:|fatal error:|SIG[A-Z]+: |goroutine \d+ ).*|^.*level=(WARN|ERROR).* msg="kv .*$`)

// allowed reports lines that do not count: that the remote tier cannot take a burst of pages
// as fast as they come, with the small budget of some seeds; that a model is not tiered,
// which holds for the whole history; and that an answer gives way under a limit.
func (p *soakPlay) allowed(line string) bool {
	return p.near && strings.Contains(line, "kv room: no room for a longer context") ||
		p.embeds && strings.Contains(line, "kv pager: off for this model") || // that of embeddings
		p.remote != "" && strings.Contains(line, "kv tier: conversations are not stored") ||
		!p.isTiered() && strings.Contains(line, "kv tier: off for this model")
}

// finish ends both servers and checks their files.
func (p *soakPlay) finish() {
	require.NoError(p.t, p.tiered.Unload(p.tiered.context(), p.arch))
	if p.embeds {
		require.NoError(p.t, p.tiered.Unload(p.tiered.context(), soakEmbedder))
	}
	for name, s := range map[string]*server{"stock": p.stock, "tiered": p.tiered} {
		runners, err := s.Runners()
		require.NoError(p.t, err)
		if s == p.tiered {
			require.Empty(p.t, runners, "the runner of the unloaded model")
		}
		require.NoError(p.t, s.Stop(), name)
		for _, line := range trouble.FindAllString(s.Logs(), -1) {
			if !p.allowed(line) {
				p.check(errors.New(line), "reading the log of the %s server", name)
			}
		}
	}
	if !p.isTiered() {
		p.t.Logf("%s is not tiered", p.arch)
		return
	}
	if p.eager && len(p.history.Rounds) > pairRounds {
		require.NotZero(p.t, p.restored)
	}
	p.check(p.checkStore(), "checking the pages")
}

// checkStore checks all files below the roots: pages must be good, and other files must be
// leftovers of the last runner, which Ollama ends with SIGKILL, that a repair removes.
func (p *soakPlay) checkStore() error {
	ctx := p.tiered.context()
	root, err := diskstore.OpenRoot(ctx, diskstore.RootOptions{
		Local: diskstore.TierConfig{Root: p.root}, Remote: diskstore.TierConfig{Root: p.remote},
	})
	if err != nil {
		return err
	}
	var roots inspect.Roots
	roots.Local, roots.Remote = root.Dirs()
	var found error
	note := func(f inspect.Finding) {
		found = errors.Join(found, fmt.Errorf("%s: %s: %s", f.Path, f.Problem, f.Why))
	}
	_, err = roots.Check(ctx, inspect.CheckOptions{Repair: true, Found: func(f inspect.Finding) {
		if f.Problem != inspect.ProblemStale {
			note(f)
		}
	}})
	if err != nil {
		return errors.Join(err, root.Close())
	}
	tiers, err := roots.Check(ctx, inspect.CheckOptions{Found: note})
	for _, tier := range tiers {
		p.t.Logf("%s: %d pages, %d tails", tier.Tier, tier.Pages, tier.Tails)
		if left := tier.Processes + tier.TempFiles + tier.Quarantined; left != 0 || tier.Err != nil {
			found = errors.Join(found, tier.Err, fmt.Errorf("%s has %d processes, %d temporary files and %d damaged ones",
				tier.Tier, tier.Processes, tier.TempFiles, tier.Quarantined))
		}
	}
	return errors.Join(err, found, root.Close())
}
