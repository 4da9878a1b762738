package tierenv

import (
	"log/slog"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/internal/env"
)

// coldVariable names the encodings of pages that move to the remote tier.
const coldVariable = "OLLAMA_KV_TIER_COLD_TYPE"

// coldTypes reads OLLAMA_KV_TIER_COLD_TYPE. An unknown value loses nothing: pages stay as they are.
func coldTypes(log *slog.Logger) diskstore.ColdTypes {
	value := env.Value(coldVariable)
	if value == "" {
		return diskstore.ColdTypes{}
	}
	k, v, err := encoding.ParseCold(value)
	if err != nil {
		usesDefault(log, coldVariable, "none", "error", err)
	}
	return diskstore.ColdTypes{K: k, V: v}
}

// ColdFor returns the encodings of a model's pages that move to the remote tier. unsuited says why
// the model can have none; "" that it can. The reason is logged if the variable is set.
func (c Config) ColdFor(unsuited string, log *slog.Logger) diskstore.ColdTypes {
	none := diskstore.ColdTypes{}
	if c.Cold == none {
		return none
	}
	if unsuited == "" && c.Remote == "" {
		unsuited = "no page moves down without OLLAMA_KV_TIER_REMOTE"
	}
	if unsuited == "" {
		return c.Cold
	}
	log.Info("kv tier: no page becomes lossy", "variable", coldVariable, "reason", unsuited)
	return none
}

// ColdText is a value of OLLAMA_KV_TIER_COLD_TYPE for encodings, and "" for none.
func ColdText(c diskstore.ColdTypes) string {
	switch {
	case c == diskstore.ColdTypes{}:
		return ""
	case c.K == c.V:
		return c.K.String()
	}
	return c.K.String() + "," + c.V.String()
}
