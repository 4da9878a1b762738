package kvcache

import (
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// Restored is the result of a restore.
type Restored struct {
	// Held counts the leading tokens of the prompt that the slot holds now.
	Held int
	// Tokens counts the tokens that came from the store.
	Tokens int
	// Shifted counts the restored tokens that were computed at another position, with other
	// text before them. Rows computed after shifted rows are not exact, and are not stored.
	Shifted int
	// Lossy counts the restored tokens from the first lossy page on, without shifted ones. These
	// rows and rows computed after them are not exact, and are not stored.
	Lossy int
	// Early counts the restored tokens that came while the model loaded.
	Early int
	// Bytes estimates the bytes read from the store.
	Bytes int64
	// Tiers names the tiers that were read, in order of first use.
	Tiers []string
	// Took is the time from the lookup to the last row.
	Took time.Duration
}

// origin is a range of a prompt's tokens, from the end of the range before, whose K/V come from
// one place.
type origin struct {
	end   int
	place string
	lossy bool // from the first lossy page on
}

// origins are the leading tokens of a prompt in ranges.
type origins []origin

func (o origins) end() int {
	if len(o) == 0 {
		return 0
	}
	return o[len(o)-1].end
}

// cut returns the ranges before position n.
func (o origins) cut(n int) origins {
	kept := make(origins, 0, len(o)+1) // others may share the array
	for begin, i := 0, 0; i < len(o) && begin < n; i++ {
		next := o[i]
		begin, next.end = next.end, min(n, next.end)
		kept = kept.add(next)
	}
	return kept
}

// add adds a range.
func (o origins) add(next origin) origins {
	if next.end <= o.end() {
		return o
	}
	if n := len(o); n > 0 && o[n-1].place == next.place && o[n-1].lossy == next.lossy {
		o[n-1].end = next.end
		return o
	}
	return append(o, next)
}

// lossy counts the tokens of lossy ranges.
func (o origins) lossy() (tokens int) {
	begin := 0
	for _, from := range o {
		if from.lossy {
			tokens += from.end - begin
		}
		begin = from.end
	}
	return tokens
}

// countIn adds the tokens of all ranges to a prompt, and reports whether some were restored.
func (o origins) countIn(p *telemetry.Prompt) (restored bool) {
	begin := 0
	for _, from := range o {
		n := from.end - begin
		switch from.place {
		case telemetry.PlaceSlot:
			p.Slot += n
		case telemetry.PlaceRAM:
			p.RAM += n
		case telemetry.PlaceRemote:
			p.Remote += n
		case telemetry.PlaceShifted:
			p.Shifted += n
		default:
			p.Local += n
		}
		restored = restored || from.place != telemetry.PlaceSlot
		begin = from.end
	}
	return restored
}
