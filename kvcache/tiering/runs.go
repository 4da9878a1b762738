package tiering

import (
	"context"
	"log/slog"
	"slices"

	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/kvcache/runs"
)

const (
	// indexTokens is how much text at other positions is found, some 20 MB: conversations of
	// 4 million tokens.
	indexTokens = 1 << 22
	// latestTokens is how much of that is looked up when a model is loaded.
	latestTokens = 1 << 20
)

// runsFor is the index of text that a model may reuse at another position, or nil: where that
// was not asked for, and where the model cannot.
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

// indexRuns makes the latest conversations known to the index.
func (s *modelStore) indexRuns(ctx context.Context) {
	if s.runs == nil {
		return
	}
	pages, err := s.Latest(ctx, latestTokens/s.config.PageTokens)
	if err != nil && ctx.Err() == nil {
		s.log.Debug("kv tier: could not look the latest conversations up for their text", "error", err)
	}
	for _, p := range slices.Backward(pages) { // the latest last
		s.runs.Add(runs.Page{Key: p.Key, Parent: p.Parent, Start: int(p.Start), Tokens: p.Tokens})
	}
}
