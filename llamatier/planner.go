package llamatier

import (
	"context"
	"log/slog"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/internal/readahead"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// planner decides how far a prompt is restored.
type planner struct {
	store    Store
	form     form
	reader   *reader // of pages that measure the speed of a tier
	rates    *rates.Rates
	patience *patience
	lossy    bool // Options.Lossy
	always   bool // Options.AlwaysRestore
	meter    *telemetry.Meter
	log      *slog.Logger
}

// plan finds the stored pages of a prompt after which the engine can go on, of which the slot
// holds some tokens already. For exact pages that many of these tokens as loss says are given up.
// Pages that take longer to read than to compute are left out.
func (d *planner) plan(ctx context.Context, tokens []int32, held, loss int) *plan {
	found := d.find(ctx, tokens, held)
	p := &plan{held: held - loss, refs: found.Exact, found: max(endOf(found.Exact), endOf(found.State))}
	if d.form.shape.HasEnd() {
		p.refs = found.State
	}
	p.tokens = tokens[:p.end(len(p.refs))]
	if p.found > len(p.tokens) {
		p.unread = why.UnreadState
	}
	if found.Mixed == nil {
		return d.paying(ctx, p)
	}
	least := max(len(p.tokens), held) + d.form.pageTokens
	mixed := &plan{held: held, refs: found.Mixed, found: endOf(found.Mixed), tokens: tokens[:endOf(found.Mixed)]}
	if d.paying(ctx, mixed); len(mixed.tokens) >= least && mixed.worth() {
		return mixed
	}
	p.found, p.unread, p.unreadTier = mixed.found, mixed.unread, mixed.unreadTier
	return d.paying(ctx, p)
}

// find looks up the stored pages of a prompt, and of a model with windows or recurrent layers those
// after which the engine can go on.
func (d *planner) find(ctx context.Context, tokens []int32, held int) diskstore.Found {
	p := diskstore.Prompt{Tokens: tokens, Beyond: held}
	if d.form.shape.HasEnd() {
		// The engine computes at least one token, and cannot take one back.
		p.Tokens = tokens[:max(0, len(tokens)-1)]
		p.State, p.Beyond = func(int) bool { return true }, d.form.window // see llamastate.Shape.Build
	} else if d.lossy {
		p.Forms = diskstore.ExactFirst
	}
	return d.store.Find(ctx, p)
}

// paying leaves pages out of a plan that take longer to read than to compute, and returns the plan.
func (d *planner) paying(ctx context.Context, p *plan) *plan {
	if !p.worth() || d.always {
		return p
	}
	c := d.form.costs(p)
	n := d.rates.Plan(c)
	d.meter.Add(telemetry.Series("ollama_kv_gate_pages_total", "decision", "read"), float64(n))
	d.meter.Add(telemetry.Series("ollama_kv_gate_pages_total", "decision", "compute"), float64(len(p.refs)-n))
	if n < len(p.refs) {
		d.log.Debug("kv tier: pages are not read, computing them is quicker",
			"pages", len(p.refs)-n, "tier", p.refs[n].Tier, "position", p.refs[n].Start)
		d.probe(ctx, p, c.After(n))
		p.notRead(n, why.UnreadQuicker)
		p.cut(n)
	}
	return p
}

// probe reads some pages of a chain, the last of a plan, to measure the present speed of their
// tier. The request does not wait for the probe, whose time is bounded.
func (d *planner) probe(ctx context.Context, p *plan, c rates.Chain) {
	n, limit := d.rates.Probe(c, pagesInMemory)
	if n == 0 {
		return
	}
	from := len(p.refs) - len(c.Pages)
	probed := &plan{tokens: p.tokens, refs: p.refs}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	d.reader.spawn(func() {
		defer cancel()
		began := time.Now()
		line := readahead.Begin(ctx, n, n, false, d.reader.spawn, func(ctx context.Context, i int) page {
			return d.reader.page(ctx, probed, from+i)
		})
		defer line.Stop()
		for range n {
			if pg, there := <-line.Next(); !there || pg.err != nil {
				if ctx.Err() != nil {
					d.rates.Probed(c.Pages[:n], time.Since(began), false)
				}
				return
			}
		}
		d.rates.Probed(c.Pages[:n], time.Since(began), true)
	})
}
