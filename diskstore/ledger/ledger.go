package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/reuse"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

/*
Ledger is the content of <root>/v1/usage.json: an upper bound of the bytes that the files
below a root occupy. Budgets limit this bound, because listing a million files takes longer
than a server may take to start.

Every process claims room before it writes: the process adds to its claim, durably, and only
then writes. So at any time, also after any crash,

	bytes on the disk ≤ Bytes + the sum of all claims

Bytes written from a claim move to Bytes when the process claims more. The bytes of removed
files leave Bytes once the removal is durable: each process subtracts only files that it
removed itself, with the size found at the removal. A replaced file stays in Bytes until the
next count. An upload that was given up stays claimed until its temporary file is gone.

A count replaces Bytes by the bytes listed and the bytes added since the listing began.
Counts changes with each count, so that a file removed during a count of another process is
not subtracted from a result that does not include the file.

The file is one line of JSON, for people, and one line with its CRC-32C. Without a valid
file, nothing is written below a budget before a new count.
*/
type Ledger struct {
	Schema int `json:"schema"`

	// Bytes are physical. Added is the sum of all bytes ever added to Bytes.
	Bytes int64 `json:"bytes"`
	Added int64 `json:"added"`

	// Counts is the number of counts of the files; 0 means that Bytes are unknown. Counted is
	// the end of the last count, Took its duration.
	Counts  int64         `json:"counts"`
	Counted time.Time     `json:"counted"`
	Took    time.Duration `json:"took_ns"`

	// Claims are the bytes that processes may still write, by the id of their lock.
	Claims map[string]Claim `json:"claims,omitempty"`

	// Written is the number of bytes written, by UTC day.
	Written map[string]int64 `json:"written,omitempty"`

	// Hits are the reads of pages, by fingerprint.
	Hits map[string]Hits `json:"hits,omitempty"`

	// Reuse are the uses of pages that were stored before.
	Reuse *reuse.Counts `json:"reuse,omitempty"`

	// Evicted is the latest recency of a file that a collection has removed.
	Evicted time.Time `json:"evicted"`
}

// Claim is room that one process may fill.
type Claim struct {
	Bytes int64     `json:"bytes"`
	Since time.Time `json:"since"` // time of the last claim
}

const (
	ledgerSchema = 1

	// ledgerDays is the number of days in Written.
	ledgerDays = 30
	dayFormat  = time.DateOnly
)

// Figure returns the upper bound of the bytes on the disk.
func (l *Ledger) Figure() int64 { return l.Bytes + l.Claimed() }

// Claimed is the sum of all claims.
func (l *Ledger) Claimed() int64 {
	var sum int64
	for _, c := range l.Claims {
		sum += c.Bytes
	}
	return sum
}

// setClaim replaces the claim of one process; 0 removes it.
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

// wrote adds n bytes to the bytes written on a day, and drops the days furthest from that
// day: long past ones, and days of a clock that was ahead.
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

func daysApart(a, b string) time.Duration {
	x, _ := time.Parse(dayFormat, a) // Decode has checked the days
	y, _ := time.Parse(dayFormat, b)
	return x.Sub(y).Abs()
}

// DayWritten is the number of bytes written to a tier in one UTC day.
type DayWritten struct {
	Day   string // as in 2006-01-02
	Bytes int64
}

// Days returns the bytes written by day, oldest first.
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

// ErrSealed reports the ledger of a team, beside which nothing is stored without its key.
var ErrSealed = errors.New("diskstore: the tier is sealed with the key of a team: name its file in OLLAMA_KV_TIER_KEY_FILE, or give another address")

// open parses the content of a tier's ledger as Read does, or returns ErrSealed with a zero one.
func open(content []byte) (*Ledger, error) {
	if bytes.HasPrefix(content, []byte(pagefile.SealedMagic)) {
		return new(Ledger), ErrSealed
	}
	return Read(content), nil
}

// Read parses the content of a tier's ledger. A missing or damaged ledger is zero.
func Read(content []byte) *Ledger {
	if l, err := Decode(content); err == nil {
		return l
	}
	return new(Ledger)
}

// Decode parses a file's content, and returns pagefile.ErrDamaged for a damaged file.
func Decode(content []byte) (*Ledger, error) {
	line, rest, _ := bytes.Cut(content, []byte("\n"))
	if want := fmt.Sprintf("crc32c %08x\n", pagefile.Checksum(line)); string(rest) != want {
		return nil, pagefile.Damaged("ledger ends in %.20q, want %q", rest, want)
	}
	l := new(Ledger)
	if err := json.Unmarshal(line, l); err != nil {
		return nil, pagefile.Damaged("parse ledger: %v", err)
	}
	// A checksum is no proof that a store wrote the file: sums must not overflow.
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
	if l.Reuse != nil && !l.Reuse.Valid() {
		l.Reuse = nil
	}
	return l, nil
}
