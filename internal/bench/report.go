package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/internal/bench/measure"
)

// schema changes when the meaning of a field changes.
const schema = 1

// Report holds all measurements of a run. Times are in seconds, rates per second.
type Report struct {
	Schema   int             `json:"schema"`
	Machine  measure.Machine `json:"machine"`
	Versions Versions        `json:"versions"`
	Settings Settings        `json:"settings"`
	TTFT     *TTFT           `json:"ttft,omitempty"`
	Large    *Large          `json:"large,omitempty"`
	Chat     *Chat           `json:"chat,omitempty"`
	Cost     *Cost           `json:"cost,omitempty"`
	Restore  *Restore        `json:"restore,omitempty"`
	Slots    *Slots          `json:"slots,omitempty"`
	Warm     *Warm           `json:"warm,omitempty"`
	Remote   *Remote         `json:"remote,omitempty"`
	Moved    *Moved          `json:"moved,omitempty"`
	Near     *Near           `json:"near,omitempty"`
	Paged    *Paged          `json:"paged,omitempty"`
	Elastic  *Elastic        `json:"elastic,omitempty"`
	Store    *Store          `json:"store,omitempty"`
}

// Versions are those of the compared programs.
type Versions struct {
	Kvtier string `json:"kvtier"` // as the patched server reports it
	Stock  string `json:"stock"`  // as the other server reports it, or from Go's build record
	// StockIsPatched: without an unpatched build, the patched one with the tier off took its
	// place.
	StockIsPatched bool   `json:"stock_is_patched"`
	Go             string `json:"go"` // Go version of this command
}

// Settings are the parameters of the run.
type Settings struct {
	Model           string `json:"model"`
	KVBytesPerToken int64  `json:"kv_bytes_per_token"`
	NumCtx          int    `json:"num_ctx"`
	PageTokens      int    `json:"page_tokens"`
	Slots           int    `json:"slots"`
	Repetitions     int    `json:"repetitions"` // repetitions of ttft
	Pairs           int    `json:"pairs"`       // pairs of prompts of cost
	Quick           bool   `json:"quick,omitempty"`
}

// TTFT is time to first token, model load taken off.
type TTFT struct {
	Points []Point `json:"points"`
	// Fixed is the time of a prompt of a few tokens that the slot holds: HTTP, scheduling,
	// sampling, streaming. FixedBatch is the time of its batch, a part of Fixed.
	Fixed      measure.Series `json:"fixed"`
	FixedBatch measure.Series `json:"fixed_batch"`
}

// Point is one prompt length.
type Point struct {
	Tokens   int            `json:"tokens"`
	Stock    measure.Series `json:"stock"`
	Cold     measure.Series `json:"cold"`      // tier on, empty store
	SameSlot measure.Series `json:"same_slot"` // tier on, asked again
	Restored measure.Series `json:"restored"`  // after kill -9
	// RestoredUncached is Restored with an empty page cache; nil without the right to empty
	// it.
	RestoredUncached *measure.Series `json:"restored_uncached,omitempty"`
	RestoredTokens   int             `json:"restored_tokens"`
	Speedup          float64         `json:"speedup"`      // stock over restored
	SpeedupCold      float64         `json:"speedup_cold"` // our own cold over restored

	// Parts of Restored: the restore itself, and the batch that computes the last token.
	Took  measure.Series `json:"restored_took"`
	Batch measure.Series `json:"restored_batch"`
	// Outside is the rest of Restored: HTTP, scheduling, tokenization, sampling.
	Outside measure.Series `json:"restored_outside"`
	// SameSlotBatch is the time of the batch without a restore, in a runner that has run
	// before.
	SameSlotBatch measure.Series `json:"same_slot_batch"`
	// PlainRead is a plain read of the same page files, from the page cache.
	PlainRead measure.Series `json:"plain_read"`
}

// Cost is speed in tokens per second with the tier on and off.
type Cost struct {
	PromptTokens  int        `json:"prompt_tokens"`
	DecodePrompt  int        `json:"decode_prompt_tokens"` // prompt of the requests whose decode speed is measured
	AnswerTokens  int        `json:"answer_tokens"`
	DecodeThreads int        `json:"decode_threads"` // prefill uses Ollama's own choice
	Prefill       SideBySide `json:"prefill"`
	Decode        SideBySide `json:"decode"`
}

// SideBySide is two series whose values were measured in pairs.
type SideBySide struct {
	Off   measure.Series `json:"off"`
	On    measure.Series `json:"on"`
	Ratio measure.Series `json:"ratio"` // on over off, per pair
}

// addPair adds a pair.
func (s *SideBySide) addPair(off, on float64) {
	s.Off.Add(off)
	s.On.Add(on)
	s.Ratio.Add(on / off)
}

// Paged is speed in tokens per second with paged attention.
type Paged struct {
	UsedTokens   int        `json:"used_tokens"` // used tokens at each capacity
	AnswerTokens int        `json:"answer_tokens"`
	PromptTokens int        `json:"prompt_tokens"` // of the comparison with stock attention
	Threads      int        `json:"threads"`
	Capacities   []Capacity `json:"capacities"`
	Prefill      SideBySide `json:"prefill"` // off: stock attention of the same build
	Decode       SideBySide `json:"decode"`
}

// Capacity is one context length.
type Capacity struct {
	NumCtx int            `json:"num_ctx"`
	Decode measure.Series `json:"decode"`
}

// Restore is speed in bytes per second. Bytes is the size of the page files.
type Restore struct {
	Tokens   int        `json:"tokens"`
	Files    int        `json:"files"`
	Bytes    int64      `json:"bytes"`
	Cached   Bandwidth  `json:"cached"`
	Uncached *Bandwidth `json:"uncached,omitempty"` // nil without the right to drop_caches
}

// Bandwidth compares a restore with a plain read of the same files.
type Bandwidth struct {
	Restore measure.Series `json:"restore"`
	Read    measure.Series `json:"read"`
	Ratio   float64        `json:"ratio"` // restore over read, of the medians
}

// Remote is time to first token of a prompt whose pages are on a remote tier. Each request
// is the first after a restart.
type Remote struct {
	Tokens int           `json:"tokens"`
	Points []RemotePoint `json:"points"`
}

// RemotePoint is one speed of the tier.
type RemotePoint struct {
	BytesPerSecond int64          `json:"bytes_per_second"`
	Decided        measure.Series `json:"decided"` // by remembered rates
	DecidedTokens  int            `json:"decided_tokens"`
	// Unknown is Decided without rates of the tier.
	Unknown        measure.Series `json:"unknown"`
	Restored       measure.Series `json:"restored"` // all pages restored, at any cost
	RestoredTokens int            `json:"restored_tokens"`
	Computed       measure.Series `json:"computed"` // a new prompt of the same length
	Ratio          float64        `json:"ratio"`    // decided over the better of restored and computed
}

// keep takes over the parts of an older report that r lacks, if both have the same machine,
// kvtier and settings, so that benchmarks can be repeated one by one. A part measured
// without a server has no version and fits any.
func (r *Report) keep(old *Report) {
	mine, theirs := r.Machine, old.Machine
	mine.BusyBefore, theirs.BusyBefore = 0, 0
	sameVersion := r.Versions.Kvtier == old.Versions.Kvtier || r.Versions.Kvtier == "" || old.Versions.Kvtier == ""
	if mine != theirs || !sameVersion || r.Settings != old.Settings {
		return
	}
	if r.Versions.Kvtier == "" {
		r.Versions.Kvtier = old.Versions.Kvtier
	}
	if r.TTFT == nil {
		r.TTFT = old.TTFT
		r.Versions.Stock, r.Versions.StockIsPatched = old.Versions.Stock, old.Versions.StockIsPatched
	}
	if r.Large == nil {
		r.Large = old.Large
	}
	if r.Chat == nil {
		r.Chat = old.Chat
	}
	if r.Cost == nil {
		r.Cost = old.Cost
	}
	if r.Restore == nil {
		r.Restore = old.Restore
	}
	if r.Slots == nil {
		r.Slots = old.Slots
	}
	if r.Warm == nil {
		r.Warm = old.Warm
	}
	if r.Remote == nil {
		r.Remote = old.Remote
	}
	if r.Moved == nil {
		r.Moved = old.Moved
	}
	if r.Near == nil {
		r.Near = old.Near
	}
	if r.Paged == nil {
		r.Paged = old.Paged
	}
	if r.Elastic == nil {
		r.Elastic = old.Elastic
	}
	if r.Store == nil {
		r.Store = old.Store
	}
}

// save writes the report in one step.
func (r *Report) save(path string) (err error) {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making a folder for the report: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".report-*")
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(append(data, '\n'))
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Chmod(f.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing the report %s: %w", path, err)
	}
	return nil
}

// load reads a report that save wrote.
func load(path string) (*Report, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("opening the report: %w", err)
	}
	r := &Report{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("reading the report %s: %w", path, err)
	}
	if r.Schema != schema {
		return nil, fmt.Errorf("reading the report %s: it has schema %d, this command reads %d; measure again", path, r.Schema, schema)
	}
	return r, nil
}
