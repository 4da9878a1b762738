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

// Limits of the file. Records that were seen longest ago are left out.
const (
	fileBytesMax = 1 << 20 // above the size of a file with all limits reached
	modelsMax    = 64
	tiersMax     = 16
	nameBytesMax = 1024
	samplesMax   = 240 // of one line: all that add keeps; a real line has some tens
)

// fileVersion changes when the meaning of a field changes.
const fileVersion = 2

// saveAfter is the delay of a write, which collects further observations.
const saveAfter = 2 * time.Second

// file keeps rates. All processes of a local root share one file.
type file struct {
	path      string
	computing string            // name of the compute rates
	names     map[string]string // name of each tier's rates

	saving sync.Mutex

	// Guarded by Rates.mu.
	unsaved bool
	timer   *time.Timer // starts the next Save
	closed  bool
}

// contents is the JSON of the file. Times are Unix seconds.
type contents struct {
	Version int                    `json:"version"`
	Models  map[string]modelRecord `json:"models"` // by name of the compute rates
	Tiers   map[string]tierRecord  `json:"tiers"`  // by directory
}

type modelRecord struct {
	Seen int64 `json:"seen"`
	// TokenSeconds are pairs: a position, and the seconds to compute a token there.
	TokenSeconds samples `json:"token_seconds"`
	// PromptSeconds are pairs: a prompt's tokens, and the seconds to compute all of them.
	PromptSeconds samples `json:"prompt_seconds,omitempty"`
}

type tierRecord struct {
	Seen  int64 `json:"seen"`
	Tried int64 `json:"tried,omitempty"`
	// PageSeconds are pairs, by the pages' form: a page's bytes, and the seconds to read it alone.
	PageSeconds map[string]samples `json:"page_seconds"`
	// MoreSeconds are the same, of the time by which a page makes a run of pages longer that queue for the tier.
	MoreSeconds map[string]samples `json:"more_seconds,omitempty"`
	Slow        *sample            `json:"slow,omitempty"`
}

func (m modelRecord) seen() int64 { return m.Seen }
func (t tierRecord) seen() int64  { return t.Seen }

// MarshalJSON writes the pair [x, y] with the significant digits only.
func (s sample) MarshalJSON() ([]byte, error) {
	out := strconv.AppendFloat([]byte{'['}, s.x, 'g', 6, 64)
	out = strconv.AppendFloat(append(out, ','), s.y, 'g', 6, 64)
	return append(out, ']'), nil
}

// UnmarshalJSON reads the pair [x, y].
func (s *sample) UnmarshalJSON(data []byte) error {
	var pair [2]float64
	if err := json.Unmarshal(data, &pair); err != nil {
		return err
	}
	s.x, s.y = pair[0], pair[1]
	return nil
}

// samples are those of a line. Reading keeps the last samplesMax.
type samples []sample

// UnmarshalJSON reads the last pairs of a list.
func (s *samples) UnmarshalJSON(data []byte) error {
	err := json.Unmarshal(data, (*[]sample)(s))
	*s = (*s)[max(0, len(*s)-samplesMax):]
	return err
}

// Open returns the rates that a file has for a way of computing and for tiers, and keeps later
// observations in that file. computing names everything that decides the cost of a token. names maps a
// tier to its name in the file: the tier's directory, so that its rates are found when the directory
// serves as another tier. A tier without an entry keeps its own name.
//
// A file that is missing or cannot be used gives empty rates, which fill with the next
// observations. The rates are usable even when the error is not nil.
func Open(path, computing string, names map[string]string) (*Rates, error) {
	r := New()
	r.file = &file{path: path, computing: computing, names: names}
	c, err := load(path)
	for _, s := range c.Models[computing].TokenSeconds {
		r.compute.add(s)
	}
	for _, s := range c.Models[computing].PromptSeconds {
		r.addWholeLocked(s)
	}
	for name, record := range c.Tiers {
		t := r.keptTierLocked(name)
		for form := range forms {
			for _, s := range record.PageSeconds[form.String()] {
				t.read[form].alone.add(s)
			}
			for _, s := range record.MoreSeconds[form.String()] {
				t.read[form].more.add(s)
			}
		}
		if s := record.Slow; s != nil && s.valid() && s.x >= 1 {
			t.slow = *s
		}
		t.tried = time.Unix(record.Tried, 0)
	}
	return r, err
}

// Names returns the names of the observed rates in a file, the last seen first. A file that is missing has none.
func Names(path string) (computing, tiers []string, err error) {
	c, err := load(path)
	maps.DeleteFunc(c.Models, func(_ string, m modelRecord) bool { return len(m.TokenSeconds) == 0 })
	maps.DeleteFunc(c.Tiers, func(_ string, t tierRecord) bool { return len(t.PageSeconds) == 0 })
	return newest(c.Models, modelRecord.seen), newest(c.Tiers, tierRecord.seen), err
}

// Known reports whether the time to compute a token was observed. Before, Computing is a guess.
func (r *Rates) Known() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.compute.known()
}

// load reads the file. A file that is missing or of another version gives empty contents.
func load(path string) (contents, error) {
	var c contents
	err := jsonfile.Read(path, fileBytesMax, &c)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	case err != nil:
		err = fmt.Errorf("read the rates of earlier runs in %s, which is made anew: %w", path, err)
	}
	if err != nil || c.Version != fileVersion {
		c = contents{Version: fileVersion}
	}
	if c.Models == nil {
		c.Models = make(map[string]modelRecord)
	}
	if c.Tiers == nil {
		c.Tiers = make(map[string]tierRecord)
	}
	for _, t := range c.Tiers {
		maps.DeleteFunc(t.PageSeconds, func(form string, s samples) bool { return len(s) == 0 || !slices.Contains(formNames, form) })
	}
	return c, err
}

// changedLocked schedules a write of the file. Rates.mu is held.
func (f *file) changedLocked(r *Rates) {
	if f == nil || f.closed {
		return
	}
	if f.unsaved = true; f.timer == nil {
		f.timer = time.AfterFunc(saveAfter, func() { _ = r.Save() })
	}
}

// Save merges new observations with those that other processes have written, and replaces
// the file in one step. A power cut may lose the file, and with it all rates.
func (r *Rates) Save() error {
	f := r.file
	if f == nil {
		return nil
	}
	f.saving.Lock()
	defer f.saving.Unlock()
	c, _ := load(f.path) // a file that cannot be used is replaced
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

// encode returns c with the new observations, as the file's contents; nil when there are none.
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
	if !r.computed.IsZero() {
		c.Models[f.computing] = modelRecord{Seen: r.computed.Unix(), TokenSeconds: r.compute.samples, PromptSeconds: r.whole}
	}
	for name, t := range r.tiers {
		if !t.seen.IsZero() {
			c.Tiers[name] = t.record()
		}
	}
	keepNewest(c.Models, modelsMax, modelRecord.seen)
	keepNewest(c.Tiers, tiersMax, tierRecord.seen)
	return json.Marshal(c)
}

func (t *tier) record() tierRecord {
	record := tierRecord{Seen: t.seen.Unix(), PageSeconds: make(map[string]samples), MoreSeconds: make(map[string]samples)}
	for form, p := range t.read {
		if p.alone.known() {
			record.PageSeconds[Form(form).String()] = p.alone.samples
		}
		if p.more.known() {
			record.MoreSeconds[Form(form).String()] = p.more.samples
		}
	}
	if !t.tried.IsZero() {
		record.Tried = t.tried.Unix()
	}
	if t.slow != (sample{}) {
		record.Slow = &t.slow
	}
	return record
}

// keepNewest drops the records of too long names, and all but the n seen last.
func keepNewest[T any](records map[string]T, n int, seen func(T) int64) {
	maps.DeleteFunc(records, func(name string, _ T) bool { return len(name) > nameBytesMax })
	names := newest(records, seen)
	for _, name := range names[min(n, len(names)):] {
		delete(records, name)
	}
}

// newest are the names of records, those seen last first.
func newest[T any](records map[string]T, seen func(T) int64) []string {
	return slices.SortedFunc(maps.Keys(records), func(a, b string) int {
		return cmp.Or(cmp.Compare(seen(records[b]), seen(records[a])), cmp.Compare(a, b))
	})
}
