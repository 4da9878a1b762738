package tiering

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/kvcache/runs"
)

// nameLatest names the latest conversation, with which a slot is filled.
func (s *modelStore) nameLatest(ctx context.Context) {
	text, err := s.Recent().Text(ctx)
	if err != nil && ctx.Err() == nil {
		s.log.Debug("kv tier: the latest conversation is not known, no slot is filled", "error", err)
	}
	s.latest <- text // the only one
}

// readAhead reads the model's latest conversations into memory for the first prompt, and logs one line.
func (s *modelStore) readAhead(ctx context.Context) {
	started := time.Now()
	ahead, err := s.Recent().ReadAhead(ctx)
	if ctx.Err() != nil || ahead.Pages == 0 && err == nil {
		return
	}
	into := "page cache"
	if ahead.RAM {
		into = "memory"
	}
	attrs := []any{
		"pages", ahead.Pages, "bytes", format.HumanBytes(ahead.Bytes), "into", into,
		"took", time.Since(started).Round(time.Microsecond),
	}
	if ahead.Promoted > 0 {
		attrs = append(attrs, "from_remote", ahead.Promoted)
	}
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	s.log.Info("kv tier: read ahead", attrs...)
}

const (
	// indexTokens is the size of the index of runs: 4 million tokens, in some 20 MB.
	indexTokens = 1 << 22
	// latestTokens bounds the tokens that are indexed when a model is loaded.
	latestTokens = 1 << 20
)

// runsFor is the index of text that a model may reuse at another position. runsFor is nil
// where reuse is turned off or the model cannot shift.
func runsFor(m Model, arch architecture, config tierenv.Config, log *slog.Logger) *runs.Index {
	if !config.Shifted {
		return nil
	}
	if !arch.shifts || m.States != nil {
		log.Info("kv tier: this model cannot shift computed text, only prompts that begin alike are reused", "architecture", m.Architecture)
		return nil
	}
	return runs.New(config.PageTokens, indexTokens/config.PageTokens)
}

// indexRuns adds the latest conversations to the index.
func (s *modelStore) indexRuns(ctx context.Context) {
	if s.runs == nil {
		return
	}
	pages, err := s.Recent().Pages(ctx)
	if err != nil && ctx.Err() == nil {
		s.log.Debug("kv tier: could not look the latest conversations up for their text", "error", err)
	}
	for _, p := range slices.Backward(pages) { // the latest is added last
		s.runs.Add(runs.Page{Key: p.Key, Parent: p.Parent, Start: int(p.Start), Tokens: p.Tokens})
	}
}
