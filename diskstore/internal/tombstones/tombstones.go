package tombstones

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Bounds of a list, in memory as in its file.
const (
	Max      = 16384 // records
	BytesMax = Max * recordBytes

	recordBytes = 32
	keyBytes    = 16
	idleAt      = keyBytes + 8
	checkAt     = recordBytes - 4
)

// futureMax is the largest difference of two clocks. A record from further ahead would outlive all others.
const futureMax = 24 * time.Hour

// Beginning is the half of a page's key that a record has.
type Beginning [keyBytes]byte

// BeginningOf returns the beginning of a key.
func BeginningOf(key pagefile.Key) Beginning { return Beginning(key[:keyBytes]) }

// Tombstone is one record.
type Tombstone struct {
	key    Beginning
	When   time.Time // in milliseconds
	Reason byte
	Uses   byte          // of the page
	Idle   time.Duration // since the page's last use, at When, in seconds
}

// Of returns the record of a page that left at a time, and was used last before that.
func Of(key pagefile.Key, when time.Time, reason byte, uses int, used time.Time) Tombstone {
	idle := min(max(0, when.Sub(used)/time.Second), math.MaxUint32)
	return Tombstone{key: BeginningOf(key), When: time.UnixMilli(when.UnixMilli()), Reason: reason, Uses: byte(uses), Idle: idle * time.Second}
}

// IdleAt is the time since the page's last use.
func (g Tombstone) IdleAt(now time.Time) time.Duration { return g.Idle + max(0, now.Sub(g.When)) }

// Is reports whether the record is of a page.
func (g Tombstone) Is(key pagefile.Key) bool { return g.key == BeginningOf(key) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (g Tombstone) append(to []byte) []byte {
	var record [recordBytes]byte
	copy(record[:], g.key[:])
	binary.BigEndian.PutUint64(record[keyBytes:], uint64(g.When.UnixMilli())<<16|uint64(g.Reason)<<8|uint64(g.Uses))
	binary.BigEndian.PutUint32(record[idleAt:], uint32(g.Idle/time.Second))
	binary.BigEndian.PutUint32(record[checkAt:], crc32.Checksum(record[:checkAt], castagnoli))
	return append(to, record[:]...)
}

// decode returns the record in recordBytes bytes; false for other bytes.
func decode(record []byte) (g Tombstone, ok bool) {
	word := binary.BigEndian.Uint64(record[keyBytes:])
	if binary.BigEndian.Uint32(record[checkAt:]) != crc32.Checksum(record[:checkAt], castagnoli) {
		return g, false
	}
	g.key, g.When, g.Reason, g.Uses = Beginning(record[:keyBytes]), time.UnixMilli(int64(word>>16)), byte(word>>8), byte(word)
	g.Idle = time.Duration(binary.BigEndian.Uint32(record[idleAt:])) * time.Second
	return g, g.Reason != 0
}

// Decode returns the records of a list. Garbage is left out, and so is all beyond BytesMax.
func Decode(content []byte) []Tombstone {
	var all []Tombstone
	for content = content[:min(len(content), BytesMax)]; len(content) >= recordBytes; content = content[recordBytes:] {
		if g, ok := decode(content); ok {
			all = append(all, g)
		}
	}
	return all
}

// List has the records of this process that are not known to be in the tier's list, fewer than
// 2*Max, and an index of both. The zero List is empty.
type List struct {
	mu    sync.Mutex
	own   []Tombstone // oldest first
	fresh int         // of own, the last ones: never written

	index map[Beginning]indexed // nil before See, at most 3*Max records
	last  int                   // the number of the latest record
}

type indexed struct {
	Tombstone
	n int // of the record, as they came
}

// See takes note of a tier's list.
func (l *List) See(content []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.indexLocked(append(Decode(content), l.own...))
}

func (l *List) indexLocked(all []Tombstone) {
	l.index, l.last = make(map[Beginning]indexed, len(all)), len(all)
	for i, g := range all {
		l.index[g.key] = indexed{g, i + 1}
	}
}

// Last returns the latest record of a page, as of the last See or Merge, and the number of those that came after
// it.
func (l *List) Last(key pagefile.Key) (g Tombstone, after int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	found, ok := l.index[BeginningOf(key)]
	return found.Tombstone, l.last - found.n, ok
}

// Pages returns a copy of the latest record of each page, by the beginning of its key.
func (l *List) Pages() map[Beginning]Tombstone {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[Beginning]Tombstone, len(l.index))
	for key, g := range l.index {
		all[key] = g.Tombstone
	}
	return all
}

// Add adds a record.
func (l *List) Add(g Tombstone) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.own = append(l.own, g)
	l.fresh++
	if l.last++; l.index != nil {
		l.index[g.key] = indexed{g, l.last}
	}
	l.boundLocked()
}

func (l *List) boundLocked() {
	if len(l.own) >= 2*Max { // not each time: a removal may have many
		l.own = slices.Clone(l.own[len(l.own)-Max:])
	}
	if len(l.index) > 3*Max {
		l.indexLocked(l.own)
	}
	l.fresh = min(l.fresh, len(l.own))
}

// Fresh is the number of records that were never written.
func (l *List) Fresh() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fresh
}

// Merge returns a tier's list with this process's records. Records that an earlier write has brought
// into the list are forgotten here.
func (l *List) Merge(content []byte, now time.Time) []byte {
	all := Decode(content)
	there := make(map[Tombstone]bool, len(all))
	for _, g := range all {
		there[g] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.own = slices.DeleteFunc(l.own, func(g Tombstone) bool { return there[g] })
	l.boundLocked()
	all = append(all, l.own...)
	all = slices.DeleteFunc(all, func(g Tombstone) bool { return g.When.Sub(now) > futureMax })
	slices.SortStableFunc(all, func(a, b Tombstone) int { return a.When.Compare(b.When) })
	all = all[max(0, len(all)-Max):]
	l.indexLocked(all)
	merged := make([]byte, 0, len(all)*recordBytes)
	for _, g := range all {
		merged = g.append(merged)
	}
	return merged
}

// Written notes that the result of a Merge was written. fresh is Fresh from before the Merge.
func (l *List) Written(fresh int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fresh = max(0, l.fresh-fresh)
}

// Find returns the latest record, in a tier's list or in this one, of one of some pages.
func (l *List) Find(content []byte, keys []pagefile.Key) (found Tombstone, ok bool) {
	wanted := make(map[Beginning]bool, len(keys))
	for _, key := range keys {
		wanted[BeginningOf(key)] = true
	}
	look := func(g Tombstone) {
		if wanted[g.key] && (!ok || g.When.After(found.When)) {
			found, ok = g, true
		}
	}
	for _, g := range Decode(content) {
		look(g)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.own {
		look(g)
	}
	return found, ok
}
