package tombstones

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
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
	checkAt     = recordBytes - 4
)

// futureMax is the largest difference of two clocks. A record from further ahead would outlive all others.
const futureMax = 24 * time.Hour

// Tombstone is one record.
type Tombstone struct {
	key    [keyBytes]byte
	When   time.Time // in milliseconds
	Reason byte
}

// Of returns the record of a page.
func Of(key pagefile.Key, when time.Time, reason byte) Tombstone {
	return Tombstone{key: [keyBytes]byte(key[:]), When: time.UnixMilli(when.UnixMilli()), Reason: reason}
}

// Is reports whether the record is of a page.
func (g Tombstone) Is(key pagefile.Key) bool { return bytes.Equal(g.key[:], key[:keyBytes]) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (g Tombstone) append(to []byte) []byte {
	var record [recordBytes]byte
	copy(record[:], g.key[:])
	binary.BigEndian.PutUint64(record[keyBytes:], uint64(g.When.UnixMilli())<<16|uint64(g.Reason)<<8)
	binary.BigEndian.PutUint32(record[checkAt:], crc32.Checksum(record[:checkAt], castagnoli))
	return append(to, record[:]...)
}

// decode returns the record in recordBytes bytes; false for other bytes.
func decode(record []byte) (g Tombstone, ok bool) {
	word := binary.BigEndian.Uint64(record[keyBytes:])
	if binary.BigEndian.Uint32(record[checkAt:]) != crc32.Checksum(record[:checkAt], castagnoli) || word&0xff != 0 || [4]byte(record[checkAt-4:checkAt]) != [4]byte{} {
		return g, false
	}
	g.key, g.When, g.Reason = [keyBytes]byte(record[:keyBytes]), time.UnixMilli(int64(word>>16)), byte(word>>8)
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
// 2*Max. The zero List is empty.
type List struct {
	mu    sync.Mutex
	own   []Tombstone // oldest first
	fresh int         // of own, the last ones: never written
}

// Add adds a record.
func (l *List) Add(g Tombstone) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.own = append(l.own, g)
	l.fresh++
	l.boundLocked()
}

func (l *List) boundLocked() {
	if len(l.own) >= 2*Max { // not each time: a removal may have many
		l.own = slices.Clone(l.own[len(l.own)-Max:])
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
	wanted := make(map[[keyBytes]byte]bool, len(keys))
	for _, key := range keys {
		wanted[[keyBytes]byte(key[:])] = true
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
