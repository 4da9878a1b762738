package engine

import (
	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/telemetry"
)

// origin is a range of a prompt's tokens, from the end of the one before, whose K/V have one place.
type origin struct {
	end   int
	place string
	lossy bool // from the first lossy page on
}

// Origins are the leading tokens of a prompt in ranges, by the place that their K/V came from.
type Origins []origin

// End is the number of tokens.
func (o Origins) End() int {
	if len(o) == 0 {
		return 0
	}
	return o[len(o)-1].end
}

// Cut returns the ranges before position n.
func (o Origins) Cut(n int) Origins {
	kept := make(Origins, 0, len(o)+1) // others may share the array
	for begin, i := 0, 0; i < len(o) && begin < n; i++ {
		next := o[i]
		begin, next.end = next.end, min(n, next.end)
		kept = kept.add(next)
	}
	return kept
}

// Add adds the tokens up to position end, which came from a telemetry.Place.
func (o Origins) Add(end int, place string) Origins { return o.add(origin{end: end, place: place}) }

// AddPages adds the tokens of pages up to position end. Those from the first lossy page on are lossy.
func (o Origins) AddPages(pages []diskstore.Ref, end int) Origins {
	lossy := false
	for _, page := range pages {
		lossy = lossy || page.Lossy
		o = o.add(origin{min(int(page.Start)+page.Tokens, end), page.Tier, lossy})
	}
	return o
}

func (o Origins) add(next origin) Origins {
	if next.end <= o.End() {
		return o
	}
	if n := len(o); n > 0 && o[n-1].place == next.place && o[n-1].lossy == next.lossy {
		o[n-1].end = next.end
		return o
	}
	return append(o, next)
}

// Lossy counts the tokens from lossy pages.
func (o Origins) Lossy() (tokens int) {
	begin := 0
	for _, from := range o {
		if from.lossy {
			tokens += from.end - begin
		}
		begin = from.end
	}
	return tokens
}

// CountIn enters into the account of a prompt where its tokens came from; the others were computed.
// CountIn reports whether some were restored.
func (o Origins) CountIn(p *telemetry.Prompt) (restored bool) {
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
	p.Computed, p.Lossy = p.Tokens-begin, o.Lossy()
	return restored
}
