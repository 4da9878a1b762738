package tiering

import (
	"context"
	"time"

	"github.com/ollama/ollama/format"
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
