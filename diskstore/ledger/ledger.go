package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

/*
ledger is <root>/v1/usage.json: how much the files below a root occupy at most.
Budgets are held to it, because listing a million files takes longer than a
server may take to start.

Every process that writes claims room first: it adds to its claim, durably, and
only then writes. So at any time, also after any crash,

	what is on the disk ≤ Bytes + the sum of all claims

What was written from a claim moves to Bytes when the process claims more. What
was removed leaves Bytes once the removal is durable: each process subtracts what
it removed itself, as it found that, and nothing that another may have removed. A
file that was replaced stays in Bytes until the next count. An upload that was
given up stays claimed until its temporary file is gone. Counting replaces Bytes by
what a listing found and what was added since the listing began. What is removed
while others count must not be subtracted from a count that has not seen it any
more: Counts tells.

The file is one line of JSON, for people, and one with its CRC-32C. Without it,
or when it is damaged, nothing is written below a budget before a new count.
*/
type Ledger struct {
	Schema int `json:"schema"`

	// Bytes are physical. Added is the sum of all that was ever added to them.
	Bytes int64 `json:"bytes"`
	Added int64 `json:"added"`

	// Counts is how often files have been counted; 0 means that Bytes mean
	// nothing. Counted is when the last count ended, Took how long it took.
	Counts  int64         `json:"counts"`
	Counted time.Time     `json:"counted"`
	Took    time.Duration `json:"took_ns"`

	// Claims are what processes may still write, by the id of their lock.
	Claims map[string]Claim `json:"claims,omitempty"`

	// Written is how many bytes were written, by UTC day.
	Written map[string]int64 `json:"written,omitempty"`

	// Hits are how often pages were read, by fingerprint.
	Hits map[string]Hits `json:"hits,omitempty"`

	// Evicted is the recency of the most recently used file that a collection
	// has removed.
	Evicted time.Time `json:"evicted"`
}

// Claim is room that one process may fill.
type Claim struct {
	Bytes int64     `json:"bytes"`
	Since time.Time `json:"since"` // when it was last claimed
}

const (
	ledgerSchema = 1

	// ledgerDays is how many days Written has.
	ledgerDays = 30
	dayFormat  = time.DateOnly
)

// Figure is what is on the disk at most, in bytes.
func (l *Ledger) Figure() int64 { return l.Bytes + l.Claimed() }

// Claimed is the sum of all claims.
func (l *Ledger) Claimed() int64 {
	var sum int64
	for _, c := range l.Claims {
		sum += c.Bytes
	}
	return sum
}

// setClaim replaces the claim of one process; none is no claim.
func (l *Ledger) setClaim(id string, n int64, now time.Time) {
	if n <= 0 {
		delete(l.Claims, id)
		return
	}
	if l.Claims == nil {
		l.Claims = make(map[string]Claim)
	}
	l.Claims[id] = Claim{Bytes: n, Since: now}
}

// wrote adds to what was written on a day, and forgets the days furthest from it:
// long past ones, and those of a clock that was ahead.
func (l *Ledger) wrote(day string, n int64) {
	if n == 0 {
		return
	}
	if l.Written == nil {
		l.Written = make(map[string]int64)
	}
	l.Written[day] += n
	days := l.Days()
	for len(days) > ledgerDays {
		furthest := days[0]
		if last := days[len(days)-1]; daysApart(last.Day, day) > daysApart(furthest.Day, day) {
			furthest, days = last, days[:len(days)-1]
		} else {
			days = days[1:]
		}
		delete(l.Written, furthest.Day)
	}
}

// daysApart is how far two days are from each other.
func daysApart(a, b string) time.Duration {
	x, _ := time.Parse(dayFormat, a) // Decode has seen to it
	y, _ := time.Parse(dayFormat, b)
	return x.Sub(y).Abs()
}

// DayWritten is how much was written to a tier in one UTC day, in bytes.
type DayWritten struct {
	Day   string // as in 2006-01-02
	Bytes int64
}

// Days returns what was written, oldest first.
func (l *Ledger) Days() []DayWritten {
	var days []DayWritten
	for _, day := range slices.Sorted(maps.Keys(l.Written)) {
		days = append(days, DayWritten{Day: day, Bytes: l.Written[day]})
	}
	return days
}

func dayOf(t time.Time) string { return t.UTC().Format(dayFormat) }

// Encode returns the file's content.
func (l *Ledger) Encode() ([]byte, error) {
	l.Schema = ledgerSchema
	line, err := json.Marshal(l)
	if err != nil {
		return nil, fmt.Errorf("encode ledger: %w", err)
	}
	return fmt.Appendf(line, "\ncrc32c %08x\n", pagefile.Checksum(line)), nil
}

// Read parses the content of a tier's ledger. One that is not there or damaged is
// zero.
func Read(content []byte) *Ledger {
	if l, err := Decode(content); err == nil {
		return l
	}
	return new(Ledger)
}

// Decode parses a file's content. It returns ErrDamaged.
func Decode(content []byte) (*Ledger, error) {
	line, rest, _ := bytes.Cut(content, []byte("\n"))
	if want := fmt.Sprintf("crc32c %08x\n", pagefile.Checksum(line)); string(rest) != want {
		return nil, pagefile.Damaged("ledger ends in %.20q, want %q", rest, want)
	}
	l := new(Ledger)
	if err := json.Unmarshal(line, l); err != nil {
		return nil, pagefile.Damaged("parse ledger: %v", err)
	}
	// A checksum says nothing about who wrote it: sums must not overflow.
	const most = math.MaxInt64 / 4
	sum := l.Bytes
	ok := l.Schema == ledgerSchema && l.Bytes >= 0 && l.Added >= 0 && l.Counts >= 0 && l.Took >= 0 && l.Added < most
	for _, c := range l.Claims {
		ok = ok && c.Bytes >= 0 && sum < most
		sum += max(0, min(c.Bytes, most))
	}
	for day, n := range l.Written {
		_, err := time.Parse(dayFormat, day)
		ok = ok && err == nil && n >= 0 && n < most
	}
	if !ok || sum >= most {
		return nil, pagefile.Damaged("ledger has values that cannot be")
	}
	l.dropBadHits()
	return l, nil
}
