package paging

import (
	"log/slog"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/memory"
	"github.com/kvtier/kvtier/internal/sizing"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// ForModel makes HostBytes the share that HOT of OLLAMA_KV_TIER_SPLIT has in the K/V of the model in a file,
// with cells tokens of all slots. OLLAMA_PAGED_HOST_GB wins. A share is at most half of the available memory,
// and at least two pages of a layer, without which the pager could not start.
func (c Config) ForModel(path string, cells int, cacheType string) Config {
	if _, split := tierenv.HotBytes(0); !split || env.Value("OLLAMA_PAGED_HOST_GB") != "" {
		return c
	}
	least, hot, err := hotOf(path, cells, cacheType, c.PageCells)
	if err != nil {
		slog.Warn("kv pager: OLLAMA_KV_TIER_SPLIT sets no memory", "reason", err)
		return c
	}
	available, err := memory.Available()
	if err == nil {
		hot = min(hot, available/2)
	}
	c.HostBytes = max(least, hot)
	return c
}

// hotOf returns the bytes of two pages of the model's largest layer, and of HOT's share.
func hotOf(path string, cells int, cacheType string, pageCells int) (least, hot uint64, err error) {
	shape, _, err := sizing.ReadShape(path)
	if err != nil {
		return 0, 0, err
	}
	total, err := shape.ContextBytes(cells, cacheType)
	if err != nil {
		return 0, 0, err
	}
	share, _ := tierenv.HotBytes(total)
	return 2 * uint64(shape.PageBytes(int64(pageCells), cacheType)), uint64(share), nil
}
