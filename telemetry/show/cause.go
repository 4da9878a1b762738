package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// Explanation is the meaning of a cause, as a clause, and the next step of the user, as a
// sentence.
type Explanation struct {
	Cause  telemetry.Cause `json:"cause"`
	Means  string          `json:"means"`
	Remedy string          `json:"remedy"`
}

// explanations has every cause, in the order of telemetry.Causes. docs/kvtier.md has the same
// table.
var explanations = []Explanation{
	{telemetry.CausePrivate,
		"an earlier request had these tokens and was not stored, as its kv_store: false asked",
		"Leave kv_store out of requests whose text may be kept."},
	{telemetry.CauseWriting,
		"the pages were still being written",
		"None is needed: the pages are found from now on. If this happens often, the disk is slow; kvtier bench measures it."},
	{telemetry.CauseDamaged,
		"a page was damaged or could not be read, and was set aside",
		"Run kvtier check; several damaged files in a week point to a disk, a cable or memory."},
	{telemetry.CauseQuicker,
		"computing was quicker than reading, by the measured speeds of both",
		"None is needed. A faster disk, or OLLAMA_KV_TIER_RAM_GB, makes reading quicker; kvtier bench measures the disk."},
	{telemetry.CauseEvicted,
		"the pages are not stored any more",
		"Raise OLLAMA_KV_TIER_LOCAL_GB, or add OLLAMA_KV_TIER_REMOTE, if room was needed; kvtier stat shows how full the tiers are."},
	{telemetry.CauseTierDown,
		"a tier with the pages could not be used",
		"Mount the directory, or bring its server back; of a remote directory the server's log has a line with \"kv tier is not usable\". A local disk that hangs or is slow shows in dmesg."},
	{telemetry.CauseImage,
		"an image is another one than before, and the text behind it depends on it",
		"Put images that change behind text and images that stay."},
	{telemetry.CauseShift,
		"the context was shifted, and text behind the kept part is not stored from then on",
		"Raise num_ctx, so that the conversation fits; OLLAMA_KV_TIER_REUSE=shifted reuses such text approximately."},
	{telemetry.CauseDiffers,
		"this token differs from that of the most similar recent prompt",
		"Move text that changes, such as the time, behind text that stays, best to the end of the prompt."},
	{telemetry.CauseWeights,
		"the same tokens are stored for other weights or adapters",
		"None: K/V belongs to one model file. Keep to one quantization of a model."},
	{telemetry.CauseType,
		"the same tokens are stored with another type of KV cache",
		"Give all servers the same OLLAMA_KV_CACHE_TYPE and OLLAMA_FLASH_ATTENTION."},
	{telemetry.CauseBuild,
		"the same tokens are stored by another build of the engine, or for other devices",
		"Install the same build on all machines. After an upgrade, each conversation is computed once."},
	{telemetry.CauseNamespace,
		"the same tokens are stored in another namespace",
		"Give servers of the same people the same OLLAMA_KV_TIER_NAMESPACE. Keep it different for others."},
	{telemetry.CausePageSize,
		"the same tokens are stored in pages of another size",
		"Give all servers the same OLLAMA_KV_TIER_PAGE_TOKENS."},
	{telemetry.CauseNeverSeen,
		"these tokens were never seen before",
		"None is needed: new text is computed once, and is stored now."},
}

// Explain explains a cause. A cause that a newer program reports has an explanation, too.
func Explain(c telemetry.Cause) Explanation {
	i := slices.IndexFunc(explanations, func(e Explanation) bool { return e.Cause == c })
	if i < 0 {
		return Explanation{c, "a newer program gave this cause", "Update kvtier to the version of the server."}
	}
	return explanations[i]
}

// Because is the reason of a miss as a sentence. Positions count from 0.
func Because(m telemetry.Miss, now time.Time) string {
	var facts []string
	if m.From != "" && !(m.From == telemetry.PlaceSlot && m.Detail != "") { // the detail says more
		facts = append(facts, from(m.From))
	}
	if !m.When.IsZero() {
		facts = append(facts, Ago(m.When, now))
	}
	if m.Detail != "" {
		facts = append(facts, m.Detail)
	}
	means := Explain(m.Cause).Means
	if len(facts) > 0 {
		means += " (" + strings.Join(facts, ", ") + ")"
	}
	return fmt.Sprintf("From token %s on: %s.", Count(int64(m.At)), means)
}

// neverStored is the remedy for pages that were evicted from the slot.
const neverStored = "The disk was slower than the model, or OLLAMA_KV_TIER_WRITE_GB_PER_DAY was reached; kvtier stat shows the bytes written."

// Remedy is the next step for a miss.
func Remedy(m telemetry.Miss) string {
	if m.Cause == telemetry.CauseEvicted && m.From == telemetry.PlaceSlot {
		return neverStored
	}
	return Explain(m.Cause).Remedy
}

// from says where evicted pages were.
func from(place string) string {
	switch place {
	case telemetry.PlaceSlot:
		return "before they were stored"
	case telemetry.PlaceRAM:
		return "from memory"
	}
	return "from the " + place + " tier"
}

// CauseTotal counts the misses of one cause.
type CauseTotal struct {
	Explanation
	Prompts int64 `json:"prompts"`
	Tokens  int64 `json:"tokens"` // that these prompts computed
}

// CauseTotals adds up the misses of models by cause, the cause with the most tokens first.
// Causes without a miss are left out.
func CauseTotals(models []telemetry.ModelState) []CauseTotal {
	all := []CauseTotal{}
	for _, e := range explanations {
		c := CauseTotal{Explanation: e}
		for _, m := range models {
			c.Prompts += total(m.Totals, telemetry.Series("ollama_kv_misses_total", "cause", string(e.Cause)))
			c.Tokens += total(m.Totals, telemetry.Series("ollama_kv_missed_tokens_total", "cause", string(e.Cause)))
		}
		if c.Prompts > 0 {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b CauseTotal) int { return cmp.Compare(b.Tokens, a.Tokens) })
	return all
}
