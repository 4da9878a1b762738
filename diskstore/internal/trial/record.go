package trial

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

const (
	// BytesMax bounds a Record's content.
	BytesMax = 64 << 10

	// keptMost bounds the results in a Record.
	keptMost = 128

	// validFor is the time after which a disk is measured again.
	validFor = 30 * 24 * time.Hour
)

// Record is results by the fingerprint of the pages. A Record that is lost costs another trial.
type Record map[string]Result

// Read returns the record of a file's content, which nobody has checked. A damaged record is empty.
func Read(content []byte) Record {
	r := Record{}
	if json.Unmarshal(content, &r) != nil || r == nil {
		return Record{}
	}
	return r
}

// Find returns the result for pages of a fingerprint, and false where there is none that holds now.
func (r Record) Find(fingerprint pagefile.Key, processors int, now time.Time) (Result, bool) {
	found, ok := r[fingerprint.String()]
	age := now.Sub(found.When)
	return found, ok && found.Processors == processors && age > -time.Hour && age < validFor
}

// With returns the content of a record with another result. The oldest ones give way.
func (r Record) With(fingerprint pagefile.Key, result Result) ([]byte, error) {
	all := maps.Clone(r)
	all[fingerprint.String()] = result
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int { return all[b].When.Compare(all[a].When) })
	for _, name := range names[min(keptMost, len(names)):] {
		delete(all, name)
	}
	return json.Marshal(all)
}
