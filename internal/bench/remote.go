package main

import "github.com/kvtier/kvtier/internal/bench/measure"

// Remote is time to first token of a prompt whose pages are on a remote tier. Each request
// is the first after a restart.
type Remote struct {
	Tokens int           `json:"tokens"`
	Points []RemotePoint `json:"points" unit:"s"`
}

// RemotePoint is one speed of the tier.
type RemotePoint struct {
	BytesPerSecond int64          `json:"bytes_per_second" unit:"B/s"`
	Decided        measure.Series `json:"decided"` // by remembered rates
	DecidedTokens  int            `json:"decided_tokens"`
	// Unknown is Decided without rates of the tier.
	Unknown        measure.Series `json:"unknown"`
	Restored       measure.Series `json:"restored"` // all pages restored, at any cost
	RestoredTokens int            `json:"restored_tokens"`
	Computed       measure.Series `json:"computed"`           // a new prompt of the same length
	Ratio          float64        `json:"ratio" unit:"ratio"` // decided over the better of restored and computed
}
