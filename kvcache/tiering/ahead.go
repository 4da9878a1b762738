package tiering

import (
	"context"
	"time"

	"github.com/ollama/ollama/format"
)

// readAhead names the latest conversations for the model's slots. readAhead then reads the model's
// latest conversations into memory for the first prompt, and logs one line.
func (s *modelStore) readAhead(ctx context.Context, slots int) {
	started := time.Now()
	texts, err := s.LatestTexts(ctx, slots)
	if err != nil && ctx.Err() == nil {
		s.log.Debug("kv tier: the latest conversations are not known, no slot is filled", "error", err)
	}
	s.texts <- texts // the only ones
	ahead, err := s.ReadAhead(ctx)
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
