package reuse

import (
	"math"
	"math/bits"
	"time"
)

// MostUses is the largest number of uses that is told apart.
const MostUses = 7

// ages are the classes of idle times: under 2 s, under 4 s, and so on to 2^27 s, four years.
const ages = 27

// Room is how much room would have kept a page that was stored again after it had left.
type Room int

// Rooms, as multiples of the tier's.
const (
	Twice Room = iota
	FourTimes
	More
	Rooms
)

// RoomFor returns the Room of a multiple.
func RoomFor(times float64) Room {
	switch {
	case times <= 2:
		return Twice
	case times <= 4:
		return FourTimes
	}
	return More
}

// Counts are the uses of a tier's pages. The zero Counts have none.
type Counts struct {
	Began [MostUses + 1]int64       `json:"began"` // pages that began to be idle, by their uses
	Again [MostUses + 1][ages]int64 `json:"again"` // those of Began that were used again, by their idle time
	Left  [Rooms]int64              `json:"left"`  // those of Again that had left the tier, by the room that would have kept them
}

func ageOf(idle time.Duration) int {
	seconds := uint64(max(0, idle) / time.Second)
	return min(max(bits.Len64(seconds), 1), ages) - 1
}

func limit(uses int) int { return min(max(0, uses), MostUses) }

// Store counts a page that was stored for the first time, as far as known.
func (c *Counts) Store() { c.Began[0]++ }

// Use counts the use of a page after an idle time, and returns the page's number of uses.
func (c *Counts) Use(uses int, idle time.Duration) int {
	uses = limit(uses)
	c.Again[uses][ageOf(idle)]++
	next := limit(uses + 1)
	c.Began[next]++
	return next
}

// Return does as Use for a page that had left.
func (c *Counts) Return(uses int, idle time.Duration, room Room) int {
	c.Left[room]++
	return c.Use(uses, idle)
}

// each calls change with each number of two Counts.
func (c *Counts) each(o *Counts, change func(mine *int64, theirs int64)) {
	for u := range c.Began {
		change(&c.Began[u], o.Began[u])
		for a := range c.Again[u] {
			change(&c.Again[u][a], o.Again[u][a])
		}
	}
	for r := range c.Left {
		change(&c.Left[r], o.Left[r])
	}
}

// most keeps sums of forged numbers from overflowing.
const most = math.MaxInt64 / 1024

// Plus returns the sum of two Counts.
func (c Counts) Plus(o Counts) Counts {
	c.each(&o, func(mine *int64, theirs int64) { *mine = min(*mine+theirs, most) })
	return c
}

// Minus returns c without o, nowhere below 0.
func (c Counts) Minus(o Counts) Counts {
	c.each(&o, func(mine *int64, theirs int64) { *mine = max(0, *mine-theirs) })
	return c
}

// Valid reports whether a store can have written the Counts.
func (c Counts) Valid() bool {
	ok := true
	c.each(&c, func(mine *int64, _ int64) { ok = ok && *mine >= 0 && *mine <= most })
	return ok
}

// Some reports whether anything was counted.
func (c Counts) Some() bool { return c != Counts{} }

// Pages returns the number of pages that were used again, those included that had left.
func (c Counts) Pages() (again int64) {
	for _, by := range c.Again {
		for _, n := range by {
			again += n
		}
	}
	return again
}

// Old pages of the Counts lose weight, so that what was true last year does not decide: beyond memory times as
// many pages as a tier has, all numbers are halved.
const (
	memory      = 16
	memoryLeast = 1 << 13 // pages
)

// Fade halves the Counts if they are of many more pages than a tier has.
func (c *Counts) Fade(pages int64) {
	var began int64
	for _, n := range c.Began {
		began += min(n, most)
	}
	if max(began, c.Pages()) > max(memoryLeast, memory*pages) { // only forged Counts have more in Again
		c.each(c, func(mine *int64, _ int64) { *mine /= 2 })
	}
}
