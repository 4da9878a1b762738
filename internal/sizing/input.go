package sizing

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Input has the figures from which a plan is made. A figure with no Origin is not known.
type Input struct {
	Model     string // as the user named it
	Shape     *Shape
	Weights   Figure // bytes
	CacheType string
	Context   Figure // tokens of a slot
	Slots     Figure
	Team      Figure // people with a context each; not known without a team
	// VRAM, RAM and SSD are the room: the video memory of the card, the memory for K/V beside
	// it, and the disk for pages. One that was not given is not planned for.
	VRAM, RAM, SSD Figure

	PageTokens int64
	TokensADay Figure // that are computed in a day
	Written    Figure // bytes that may be written to the disk in its life
	// Encoded is the size of a page's file relative to its rows.
	Encoded Figure
	// Disk, Memory and Remote are the rates at which pages are read, in bytes per second.
	Disk, Memory, Remote Figure
	// Compute returns the seconds to compute the tokens from position begin to end; nil where
	// that is not known. ComputeFrom has no value.
	Compute     func(begin, end int64) float64
	ComputeFrom Figure
	// Elastic and Paged: OLLAMA_KVCACHED and OLLAMA_PAGED_ATTN are on. ElasticLimit, PagedHost and PagedVRAM are
	// their variables, in bytes, PagedCells the tokens of a page of paged attention, PagedAfter those of all
	// slots that come before pages; not known where the memory of a card decides.
	Elastic, Paged                     bool
	ElasticLimit, PagedHost, PagedVRAM Figure
	PagedCells, PagedAfter             Figure
	// Hot is the share of HOT in the context.
	Hot Figure
	// Cold is the type of lossy pages in the remote tier, or "".
	Cold string
	// RAMPays: pages are compressed or come from a remote tier, so that a RAM tier is quicker
	// than the system's page cache.
	RAMPays bool
}

// Bounds of a plan.
const (
	CellsMax = 1 << 31 // tokens of all slots together
	slotsMax = 1 << 10
	teamMax  = 1_000_000
)

// Check refuses values of a user for which there is no plan.
func (in *Input) Check() error {
	switch {
	case !slices.Contains(cacheTypes, in.CacheType):
		return fmt.Errorf("the type of K/V is %q; give one of f16, q8_0 and q4_0", in.CacheType)
	case in.Context.Value < 1 || in.Slots.Value < 1 || in.Slots.Value > slotsMax || in.Context.Value*in.Slots.Value > CellsMax:
		return fmt.Errorf("%.0f slots of %.0f tokens cannot be planned; give 1 to %d slots, and at most %d tokens in all of them", in.Slots.Value, in.Context.Value, slotsMax, int64(CellsMax))
	case in.Team.Origin != "" && (in.Team.Value < 1 || in.Team.Value > teamMax):
		return fmt.Errorf("a team of %.0f cannot be planned; give 1 to %d people", in.Team.Value, teamMax)
	case in.PageTokens < 1:
		return fmt.Errorf("a page has %d tokens", in.PageTokens)
	}
	return nil
}

func (f Figure) known() bool { return f.Origin != "" && f.Value > 0 }

// Origin is where a figure comes from.
type Origin string

// Origins.
const (
	Measured Origin = "measured" // now, or by a server that ran here
	Read     Origin = "read"     // from the model's file
	Given    Origin = "given"    // by the user
	Assumed  Origin = "assumed"
	Computed Origin = "computed" // from other figures
)

// Figure is a number, and where it comes from.
type Figure struct {
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Origin Origin  `json:"origin"`
	From   string  `json:"from,omitempty"` // names the file, the option or the formula
}

// Units of figures.
const (
	Bytes         = "bytes"
	Tokens        = "tokens"
	Conversations = "conversations"
	Seconds       = "seconds"
	BytesPerS     = "bytes/s"
	TokensPerDay  = "tokens/day"
	BytesPerDay   = "bytes/day"
	Years         = "years"
	Ratio         = "ratio"
	Count         = "count"
)

// weakest is the origin of a figure that follows from others: one that follows from an
// assumption is an assumption.
func weakest(figures ...Figure) Origin {
	if slices.ContainsFunc(figures, func(f Figure) bool { return f.Origin == Assumed }) {
		return Assumed
	}
	return Computed
}

// Sizes are decimal as everywhere in this project and as disks are sold; names with an i are
// binary. Sizes of memory are binary, as kvcached's tools have them.
var (
	byteUnits = map[string]float64{
		"": 1, "b": 1,
		"k": 1e3, "kb": 1e3, "kib": 1 << 10, "m": 1e6, "mb": 1e6, "mib": 1 << 20,
		"g": 1e9, "gb": 1e9, "gib": 1 << 30, "t": 1e12, "tb": 1e12, "tib": 1 << 40, "p": 1e15, "pb": 1e15, "pib": 1 << 50,
	}
	memoryUnits = map[string]float64{
		"": 1, "b": 1,
		"k": 1 << 10, "kb": 1 << 10, "ki": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "mi": 1 << 20, "mib": 1 << 20,
		"g": 1 << 30, "gb": 1 << 30, "gi": 1 << 30, "gib": 1 << 30, "t": 1 << 40, "tb": 1 << 40, "ti": 1 << 40, "tib": 1 << 40,
	}
	tokenUnits = map[string]float64{"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
)

// AmountMax bounds every size and number that a user gives, so that all products of a plan are finite.
const AmountMax = 1e18

// ParseBytes reads a size such as 8G, 8GiB or 200GB.
func ParseBytes(text string) (int64, error) {
	return parse(text, byteUnits, 0, AmountMax, "size; give one such as 8G, 7.5GB or 8GiB")
}

// memoryMax is more memory than any machine has.
const memoryMax = 1 << 50

// ParseMemory reads a size of memory such as 512M, 1.5G or 1.5GiB, above 0.
func ParseMemory(text string) (int64, error) {
	return parse(text, memoryUnits, 1, memoryMax, "size of memory; give one such as 512M or 1.5G")
}

// ParseTokens reads a number of tokens such as 131072, 128k or 2M: k is 1,000.
func ParseTokens(text string) (int64, error) {
	return parse(text, tokenUnits, 0, AmountMax, "number of tokens; give one such as 131072, 500k or 2M")
}

// parse reads a number with one of some units; what says what the text should be.
func parse(text string, units map[string]float64, least, most float64, what string) (int64, error) {
	trimmed := strings.TrimSpace(text)
	digits := strings.TrimRight(trimmed, "bkmgtpiBKMGTPI ")
	unit, ok := units[strings.ToLower(strings.TrimSpace(trimmed[len(digits):]))]
	plain := strings.Trim(digits, "0123456789.") == "" // no signs, exponents or NaN
	f, err := strconv.ParseFloat(digits, 64)
	n := math.Round(f * unit)
	if !ok || !plain || err != nil || !(n >= least && n <= most) {
		return 0, fmt.Errorf("%q is not a %s", text, what)
	}
	return int64(n), nil
}
