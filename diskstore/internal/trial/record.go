package trial

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

const (
	// BytesMax bounds the content of a record.
	BytesMax = 64 << 10

	// keptMost bounds the verdicts in a record.
	keptMost = 256

	// validFor is the time after which a verdict does not count any more.
	validFor = 30 * 24 * time.Hour

	// clockError is how far a verdict may be ahead of the clock.
	clockError = time.Hour
)

// record is the verdicts by the name of their pages and processors.
type record map[string]recorded

// recorded is a verdict in a record.
type recorded struct {
	Compress   bool      `json:"compress"`
	Raw        float64   `json:"raw_s_per_gb"`
	Compressed float64   `json:"compressed_s_per_gb"`
	When       time.Time `json:"when"`
}

// names are the names of verdicts: a fingerprint, and a number of processors.
var names = regexp.MustCompile(`^[0-9a-f]{64}-[0-9]{1,5}$`)

func nameOf(fingerprint pagefile.Key, processors int) string {
	return fmt.Sprintf("%s-%d", fingerprint, processors)
}

// parse returns the verdicts of a record. Nobody has checked the content, and a damaged record has none.
func parse(content []byte) record {
	r := record{}
	if json.Unmarshal(content, &r) != nil || r == nil {
		return record{}
	}
	maps.DeleteFunc(r, func(name string, _ recorded) bool { return !names.MatchString(name) })
	return r
}

// counts reports whether a verdict is neither too old nor from the future.
func (r recorded) counts(now time.Time) bool {
	age := now.Sub(r.When)
	return age >= -clockError && age < validFor
}

// Recall takes over the verdict of an earlier process, if a record has one for the pages of a
// fingerprint and a number of processors.
func (t *Trial) Recall(content []byte, fingerprint pagefile.Key, processors int, now time.Time) {
	v, ok := parse(content)[nameOf(fingerprint, processors)]
	if !ok || !v.counts(now) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.verdict = Verdict{Known: true, Seconds: [forms]float64{v.Raw, v.Compressed}}
	t.vain = v.Compressed == 0
	if v.Compress {
		t.verdict.Form = Compressed
	}
}

// Changed reports whether the verdict is newer than the record.
func (t *Trial) Changed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.version != t.written
}

// Record returns a record with the verdict, and the verdict's version for Recorded. Where there are too many
// verdicts, those that do not count give way, and then the oldest: the clock of this process may be wrong.
func (t *Trial) Record(content []byte, fingerprint pagefile.Key, processors int, now time.Time) (record []byte, version int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := parse(content)
	own := nameOf(fingerprint, processors)
	delete(all, own)
	oldest := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		if counts := all[a].counts(now); counts != all[b].counts(now) {
			if counts {
				return 1
			}
			return -1
		}
		return all[a].When.Compare(all[b].When)
	})
	for _, name := range oldest[:max(0, len(oldest)-keptMost+1)] {
		delete(all, name)
	}
	v := t.verdict
	all[own] = recorded{Compress: v.Form == Compressed, Raw: v.Seconds[Raw], Compressed: v.Seconds[Compressed], When: now.UTC().Truncate(time.Second)}
	changed, err := json.Marshal(all)
	if err != nil || len(changed) > BytesMax { // cannot be: numbers are finite, and names short
		return content, t.version
	}
	return changed, t.version
}

// Recorded notes that a record with a version of the verdict is on the disk.
func (t *Trial) Recorded(version int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.written = version
}
