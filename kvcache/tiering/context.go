package tiering

import (
	"fmt"
	"math"
	"strconv"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/sizing"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// contextBytes is the size of the K/V of a model's whole context, that of all its slots, as
// pages hold it; 0 where the runner does not say how long the context is.
func contextBytes(m Model) (int64, error) {
	shape, _, err := sizing.ReadShape(m.Path)
	if err != nil {
		return 0, fmt.Errorf("read the model's shape: %w", err)
	}
	return shape.ContextBytes(m.Cells, m.CacheType)
}

// Variables of budgets that win over HOT of OLLAMA_KV_TIER_SPLIT.
const (
	pagedHostVariable    = "OLLAMA_PAGED_HOST_GB"
	elasticLimitVariable = "OLLAMA_KVCACHED_LIMIT_MB"
)

// hotSets names the variable in whose place HOT counts for the model, "" for none.
func (m Model) hotSets() string {
	switch {
	case m.Paged:
		if env.Value(pagedHostVariable) == "" {
			return pagedHostVariable
		}
	case env.Asked("OLLAMA_KVCACHED") && ElasticLimit(math.MaxInt32) < math.MaxInt32:
		return elasticLimitVariable
	}
	return ""
}

// ElasticLimit is the first limit of elastic memory on a device that has whole bytes of K and V for all
// of the context: HOT's share, unless OLLAMA_KVCACHED_LIMIT_MB has a limit. Without a share, or with one
// of 0, under which no prompt could start, it is whole.
func ElasticLimit(whole uint64) uint64 {
	if mb, err := strconv.ParseUint(env.Value(elasticLimitVariable), 10, 64); err == nil && mb > 0 {
		return whole
	}
	hot, ok := tierenv.HotBytes(int64(min(whole, math.MaxInt64)))
	if !ok || hot <= 0 {
		return whole
	}
	return uint64(hot)
}
