package tierenv

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/jsonfile"
)

// Split divides the K/V of a model's whole context, that of all its slots, into shares in percent. Hot is the
// K/V in the engine: [HotBytes] bounds the memory of paged attention and elastic memory; any other engine
// allocates its cells by itself. Warm is the RAM tier. Every page in memory is also on disk, so the local tier
// has room for Warm and Cold.
type Split struct {
	Hot, Warm, Cold float64
	// RAMSet and LocalSet: the variable of that budget is set, and wins.
	RAMSet, LocalSet bool
}

// sumTolerance is the rounding, in percent, that the shares may have together.
const sumTolerance = 0.01

// parseSplit reads HOT,WARM,COLD.
func parseSplit(text string) (*Split, error) {
	parts := strings.Split(text, ",")
	if len(parts) != 3 {
		return nil, errors.New("it is not three percentages, such as 25,25,50")
	}
	var shares [3]float64
	for i, part := range parts {
		share, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(share >= 0 && share <= 100) {
			return nil, fmt.Errorf("%q is not a percentage from 0 to 100; give three, such as 25,25,50", strings.TrimSpace(part))
		}
		shares[i] = share
	}
	sum := shares[0] + shares[1] + shares[2]
	switch {
	case math.Abs(sum-100) > sumTolerance:
		return nil, fmt.Errorf("the percentages add up to %v, and not to 100", sum)
	case shares[1]+shares[2] == 0:
		return nil, errors.New("it leaves no room for pages; give a share to WARM or COLD, or turn tiering off")
	}
	return &Split{Hot: shares[0], Warm: shares[1], Cold: shares[2]}, nil
}

// Shares are the bytes of a context: those that the engine's own cells are to keep, and the
// budgets of memory and of the local disk.
func (s Split) Shares(total int64) (hot, ram, local int64) {
	return share(s.Hot, total), share(s.Warm, total), share(s.Warm+s.Cold, total)
}

func share(percent float64, bytes int64) int64 { return int64(percent / 100 * float64(bytes)) }

// HotBytes is HOT's share of a context of total bytes. ok is false where there is none: tiering is off, or
// OLLAMA_KV_TIER_SPLIT is not set or cannot be used.
func HotBytes(total int64) (hot int64, ok bool) {
	split, err := parseSplit(env.Value(SplitVariable))
	if err != nil || !Enabled() {
		return 0, false
	}
	hot, _, _ = split.Shares(total)
	return hot, true
}

// ApplySplit sets the budgets that OLLAMA_KV_TIER_SPLIT names, of which no variable of their own
// is set. total is the size of the K/V of all slots of a model of a fingerprint, in bytes. The
// local directory may hold pages of several models: its budget is the sum of their shares, so
// that a model with a small context does not evict the pages of a large one. hotSets names, for the
// log, the variable in whose place HOT counts; "" where HOT sets nothing.
//
// Without the variable, or where total is not known, the budgets stay.
func (c Config) ApplySplit(fingerprint string, total int64, hotSets string, err error, log *slog.Logger) Config {
	switch {
	case c.Split == nil:
		return c
	case err == nil && total <= 0:
		err = errors.New("the engine does not say how long the context is")
	}
	if err != nil {
		log.Warn("kv tier: OLLAMA_KV_TIER_SPLIT sets no budgets", "reason", err)
		return c
	}
	hot, ram, local := c.Split.Shares(total)
	if !c.Split.RAMSet {
		c.RAMBytes = ram
	}
	if !c.Split.LocalSet {
		own := max(1, local) // 0 would mean no budget
		c.LocalBytes, err = sumOfShares(filepath.Join(c.Local, splitsFile), fingerprint, own, time.Now())
		if err != nil { // too large a budget deletes nothing
			c.LocalBytes = max(own, DefaultLocalBytes)
		}
	}
	attrs := []any{
		"context_bytes", total, "hot_bytes", hot, "hot_sets", cmp.Or(hotSets, "nothing"), "ram_bytes", c.RAMBytes, "local_bytes", c.LocalBytes,
	}
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	log.Info("kv tier: budgets by OLLAMA_KV_TIER_SPLIT", attrs...)
	return c
}

const (
	// splitsFile has the share of each model that uses the local directory.
	splitsFile = "splits.json"

	splitsBytesMax  = 1 << 16
	splitsMax       = 64
	splitsForgotten = 30 * 24 * time.Hour // after the last time that the model was loaded
	shareMax        = math.MaxInt64 / 2 / splitsMax
)

// splitRecord is the share of one model, by its fingerprint.
type splitRecord struct {
	Bytes int64 `json:"bytes"`
	Seen  int64 `json:"seen"` // Unix seconds
}

// sumOfShares notes the share of a model, and returns the sum of all shares. Two models that
// are loaded at the same moment may miss one of them until one is loaded again.
func sumOfShares(path, fingerprint string, own int64, now time.Time) (int64, error) {
	records := make(map[string]splitRecord)
	if err := jsonfile.Read(path, splitsBytesMax, &records); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("read the shares of other models: %w; remove that file if its contents are damaged", err)
	}
	if records == nil { // the file is null
		records = make(map[string]splitRecord)
	}
	maps.DeleteFunc(records, func(name string, r splitRecord) bool {
		seen := time.Unix(r.Seen, 0)
		return r.Bytes <= 0 || r.Bytes > shareMax || name == fingerprint || now.Sub(seen) > splitsForgotten || seen.After(now.Add(splitsForgotten))
	})
	for len(records) >= splitsMax {
		delete(records, oldestShare(records))
	}
	records[fingerprint] = splitRecord{min(own, shareMax), now.Unix()}
	sum := int64(0)
	for _, r := range records {
		sum += r.Bytes
	}
	data, err := json.Marshal(records)
	if err == nil {
		err = jsonfile.Replace(path, data)
	}
	if err != nil {
		return sum, fmt.Errorf("note this model's share: %w", err)
	}
	return sum, nil
}

// oldestShare is the fingerprint that was loaded longest ago.
func oldestShare(records map[string]splitRecord) (oldest string) {
	for name, r := range records {
		if o, ok := records[oldest]; !ok || r.Seen < o.Seen || r.Seen == o.Seen && name < oldest {
			oldest = name
		}
	}
	return oldest
}
