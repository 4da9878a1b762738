package kvcache

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

// checkAccount checks the account of a prompt whose restore has ended.
func (r *fakeRunner) checkAccount(slot int, restored Restored) {
	r.tiered.mu.Lock()
	defer r.tiered.mu.Unlock()
	a := r.tiered.accounts[slot]
	require.NotNil(r.t, a)
	require.Equal(r.t, restored.Held, a.from.end(), "%+v of %+v", a.from, restored)
	var p telemetry.Prompt
	a.from.countIn(&p)
	require.Equal(r.t, restored.Shifted, p.Shifted)
	require.Equal(r.t, restored.Tokens, p.RAM+p.Local+p.Remote+p.Shifted, "%+v of %+v", a.from, restored)
}

// checkAccounts checks that each prompt's tokens come from somewhere, and that no total has fallen.
// ended: every prompt was recorded.
func (r *fakeRunner) checkAccounts(t require.TestingT, ended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tiered.mu.Lock()
	defer r.tiered.mu.Unlock()
	r.checkAccountsLocked(t, ended)
}

func (r *fakeRunner) checkAccountsLocked(t require.TestingT, ended bool) {
	totals, prompts := r.meter.Read()
	for series, was := range r.totals {
		if totals[series] < was {
			require.Fail(t, "", "%s fell from %v to %v", series, was, totals[series])
		}
	}
	r.totals = totals
	for _, p := range prompts {
		sum := p.Slot + p.RAM + p.Local + p.Remote + p.Shifted + p.Computed
		if sum != p.Tokens || min(p.Slot, p.RAM, p.Local, p.Remote, p.Shifted) < 0 || p.Computed < 1 || p.Saved < 0 {
			require.Fail(t, "", "%+v", p)
		}
	}
	open, tokens := 0, 0.0
	for _, a := range r.tiered.accounts {
		open, tokens = open+1, tokens+float64(a.tokens)
	}
	for _, f := range r.tiered.flights {
		for _, a := range f.prompts {
			open, tokens = open+1, tokens+float64(a.tokens)
		}
	}
	if ended {
		require.Zero(t, open)
	}
	require.EqualValues(t, r.asked, totals["ollama_kv_prompts_total"]+float64(open), "each prompt is recorded once")
	for series, n := range totals {
		if strings.HasPrefix(series, "ollama_kv_prompt_tokens_total") {
			tokens += n
		}
	}
	require.EqualValues(t, r.tokens, tokens)
}

func TestOrigins(t *testing.T) {
	o := origins(nil).add(0, "slot").add(3, "slot").add(5, "local").add(4, "ram").add(8, "local")
	require.Equal(t, origins{{3, "slot"}, {8, "local"}}, o)
	require.Equal(t, origins{{3, "slot"}, {5, "local"}}, o.cut(5))
	require.Equal(t, origins{{3, "slot"}}, o.cut(3))
	require.Empty(t, o.cut(0))
	require.Equal(t, o, o.cut(99))
	cut := o.cut(5)
	cut.add(9, "local")
	require.Equal(t, origins{{3, "slot"}, {8, "local"}}, o, "a cut shares nothing with its whole")
	require.Zero(t, origins(nil).cut(4).end())
}
