package rates

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kvtier/kvtier/internal/jsonfile"
)

// Limits of the file. What was not seen for longest is left out.
const (
	fileBytesMax = 1 << 20 // more than all of these together
	modelsMax    = 64
	tiersMax     = 16
	nameBytesMax = 1024
	samplesMax   = 200 // of one line; of a machine's there are some tens
)

// fileVersion changes when the meaning of a field does.
const fileVersion = 1

// saveAfter is how long an observation waits for others before all are written.
const saveAfter = 2 * time.Second

// file is where rates are kept: one for all processes of a local root.
type file struct {
	path      string
	computing string            // under which compute rates are kept
	names     map[string]string // under which tiers are kept

	saving sync.Mutex

	// Below Rates.mu.
	unsaved bool
	timer   *time.Timer // of the next Save
	closed  bool
}

// contents is the file. Times are Unix seconds.
type contents struct {
	Version int                    `json:"version"`
	Models  map[string]modelRecord `json:"models"` // by what computes
	Tiers   map[string]tierRecord  `json:"tiers"`  // by directory
}

type modelRecord struct {
	Seen int64 `json:"seen"`
	// TokenSeconds are pairs of a position and the seconds that a token took there.
	TokenSeconds []sample `json:"token_seconds"`
}

type tierRecord struct {
	Seen  int64 `json:"seen"`
	Tried int64 `json:"tried,omitempty"`
	// PageSeconds are pairs of a page's bytes and the seconds that it took.
	PageSeconds []sample `json:"page_seconds"`
	Slow        *sample  `json:"slow,omitempty"`
}

// MarshalJSON writes the pair [x, y], with as many digits as mean something.
func (s sample) MarshalJSON() ([]byte, error) {
	out := strconv.AppendFloat([]byte{'['}, s.x, 'g', 6, 64)
	out = strconv.AppendFloat(append(out, ','), s.y, 'g', 6, 64)
	return append(out, ']'), nil
}

// UnmarshalJSON reads it.
func (s *sample) UnmarshalJSON(data []byte) error {
	var pair [2]float64
	if err := json.Unmarshal(data, &pair); err != nil {
		return err
	}
	s.x, s.y = pair[0], pair[1]
	return nil
}

// Open returns the rates that a file has for a way of computing and for tiers, and keeps them
// there. computing names all that the cost of a token follows from. names says under what
// name each tier is kept: its directory, so that it is known wherever else it serves as which
// tier. A tier that has none is kept under its own.
//
// A file that is missing or cannot be used is as if nothing was known: rates come back by
// themselves. The error only says why; the rates can be used.
func Open(path, computing string, names map[string]string) (*Rates, error) {
	r := New()
	r.file = &file{path: path, computing: computing, names: names}
	c, err := load(path)
	for _, s := range lastOf(c.Models[computing].TokenSeconds) {
		r.compute.add(s)
	}
	for name, record := range c.Tiers {
		t := r.keptTierLocked(name)
		for _, s := range lastOf(record.PageSeconds) {
			t.read.add(s)
		}
		if s := record.Slow; s != nil && s.valid() && s.x >= 1 {
			t.slow = *s
		}
		t.tried = time.Unix(record.Tried, 0)
	}
	return r, err
}

func lastOf(samples []sample) []sample { return samples[max(0, len(samples)-samplesMax):] }

// load reads the file; of one that is missing or of another version the contents are empty.
func load(path string) (contents, error) {
	var c contents
	switch err := jsonfile.Read(path, fileBytesMax, &c); {
	case errors.Is(err, fs.ErrNotExist):
		return contents{}, nil
	case err != nil:
		return contents{}, fmt.Errorf("read the rates of earlier runs in %s, which is made anew: %w", path, err)
	case c.Version != fileVersion:
		return contents{}, nil
	}
	return c, nil
}

// changedLocked makes the file be written soon. Rates.mu is held.
func (f *file) changedLocked(r *Rates) {
	if f == nil || f.closed {
		return
	}
	if f.unsaved = true; f.timer == nil {
		f.timer = time.AfterFunc(saveAfter, func() { _ = r.Save() })
	}
}

// Save writes what was observed since the last time, beside what other processes have
// written. The file is replaced in one step, and may be lost in a power cut: then nothing
// is known.
func (r *Rates) Save() error {
	f := r.file
	if f == nil {
		return nil
	}
	f.saving.Lock()
	defer f.saving.Unlock()
	c, _ := load(f.path) // one that cannot be used is made anew
	data, err := r.encode(c)
	if err == nil && data != nil {
		err = jsonfile.Replace(f.path, data)
	}
	if err != nil {
		return fmt.Errorf("keep the rates of prefill and of the tiers: %w", err)
	}
	return nil
}

// Close is the last Save.
func (r *Rates) Close() error {
	if r.file == nil {
		return nil
	}
	r.mu.Lock()
	r.file.closed = true
	r.mu.Unlock()
	return r.Save()
}

// encode returns what the file is to hold, after it held c: nil when there is nothing new.
func (r *Rates) encode(c contents) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.file
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
	if !f.unsaved {
		return nil, nil
	}
	f.unsaved = false
	c.fill()
	if !r.computed.IsZero() {
		c.Models[f.computing] = modelRecord{Seen: r.computed.Unix(), TokenSeconds: r.compute.samples}
	}
	for name, t := range r.tiers {
		if !t.seen.IsZero() {
			c.Tiers[name] = t.record()
		}
	}
	c.trim()
	return json.Marshal(c)
}

func (t *tier) record() tierRecord {
	record := tierRecord{Seen: t.seen.Unix(), PageSeconds: t.read.samples}
	if !t.tried.IsZero() {
		record.Tried = t.tried.Unix()
	}
	if t.slow != (sample{}) {
		record.Slow = &t.slow
	}
	return record
}

// fill makes an empty file's contents ready to be added to.
func (c *contents) fill() {
	c.Version = fileVersion
	if c.Models == nil {
		c.Models = make(map[string]modelRecord)
	}
	if c.Tiers == nil {
		c.Tiers = make(map[string]tierRecord)
	}
}

// trim keeps contents within their limits.
func (c *contents) trim() {
	keepNewest(c.Models, modelsMax, func(m modelRecord) int64 { return m.Seen })
	keepNewest(c.Tiers, tiersMax, func(t tierRecord) int64 { return t.Seen })
	for name, m := range c.Models {
		m.TokenSeconds = lastOf(m.TokenSeconds)
		c.Models[name] = m
	}
	for name, t := range c.Tiers {
		t.PageSeconds = lastOf(t.PageSeconds)
		c.Tiers[name] = t
	}
}

// keepNewest drops the records of too long names, and all but the n seen last.
func keepNewest[T any](records map[string]T, n int, seen func(T) int64) {
	maps.DeleteFunc(records, func(name string, _ T) bool { return len(name) > nameBytesMax })
	names := slices.Collect(maps.Keys(records))
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(seen(records[b]), seen(records[a])), cmp.Compare(a, b))
	})
	for _, name := range names[min(n, len(names)):] {
		delete(records, name)
	}
}
