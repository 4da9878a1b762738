package collect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/telemetry"
)

const (
	// fileVersion is that of totals.json.
	fileVersion = 1
	// fileBytesMax is more than the bounds of the content allow.
	fileBytesMax = 24 << 20
)

// errContent reports a file whose content cannot be used.
var errContent = errors.New("its content cannot be used")

// file is the content of totals.json: numbers, and names of models. It has no prompts, and
// nothing of tokens.
type file struct {
	Version   int           `json:"version"`
	Since     time.Time     `json:"since"`
	Dropped   time.Time     `json:"dropped,omitzero"`
	Models    []fileModel   `json:"models"`
	Processes []fileProcess `json:"processes"`
}

type fileModel struct {
	Model    telemetry.Model `json:"model"`
	Engine   string          `json:"engine"`
	LastUsed time.Time       `json:"last_used"`
	Series   []string        `json:"series"`
	Totals   []float64       `json:"totals"`
}

// fileProcess is a process whose totals are in those of its model.
type fileProcess struct {
	Process telemetry.Process `json:"process"`
	Started time.Time         `json:"started"`
	Model   int               `json:"model"`  // in file.Models
	Totals  []float64         `json:"totals"` // in the order of the model's series
}

// file returns the content for the file, and the number of the last change in it.
func (b *books) file() (f file, changes uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f = file{Version: fileVersion, Since: b.since, Dropped: b.dropped, Models: []fileModel{}, Processes: []fileProcess{}}
	at := make(map[*model]int)
	for i, m := range b.models {
		at[m] = i
		f.Models = append(f.Models, fileModel{
			Model: m.info, Engine: m.key.engine, LastUsed: m.lastUsed,
			Series: slices.Clone(m.series), Totals: slices.Clone(m.totals),
		})
	}
	for _, p := range b.processes {
		f.Processes = append(f.Processes, fileProcess{
			Process: p.id, Started: p.started, Model: at[p.model], Totals: append([]float64{}, p.last...),
		})
	}
	slices.SortFunc(f.Processes, func(x, y fileProcess) int { return x.Started.Compare(y.Started) })
	return f, b.changes
}

// fill puts a file's content into new books. The error is errContent, and the books stay empty.
func (b *books) fill(data []byte, boot string) error {
	f, err := decodeFile(data)
	if err != nil {
		return fmt.Errorf("%w: %w", errContent, err)
	}
	if err := f.check(); err != nil {
		return fmt.Errorf("%w: %w", errContent, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since, b.dropped = f.Since, f.Dropped
	for _, from := range f.Models {
		m := newModel(from.key())
		m.info, m.lastUsed = from.Model, from.LastUsed
		for i, series := range from.Series {
			at, ok := m.place(series)
			if ok {
				m.totals[at] = from.Totals[i]
			}
		}
		b.models, b.byKey[m.key] = append(b.models, m), m
	}
	for _, from := range f.Processes {
		p := &process{id: from.Process, started: from.Started, model: b.models[from.Model], last: from.Totals, heard: b.now()}
		if boot != "" && p.id.Boot != "" && p.id.Boot != boot {
			p.gone, p.away = b.now(), true // before a boot, or on another machine with the same root
		}
		b.processes[keyOf(p.id, p.started)] = p
	}
	b.boundLocked()
	return nil
}

// decodeFile decodes a file. Its lists of objects are bounded, as those of a report: root reads files
// of other users.
func decodeFile(data []byte) (file, error) {
	var w struct {
		file
		Models    json.RawMessage `json:"models"`
		Processes json.RawMessage `json:"processes"`
	}
	if err := json.Unmarshal(data, &w); err != nil {
		return w.file, err
	}
	var err error
	if w.file.Models, err = decodeList[fileModel]("models", w.Models, telemetry.ModelsMax); err != nil {
		return w.file, err
	}
	w.file.Processes, err = decodeList[fileProcess]("processes", w.Processes, telemetry.ProcessesMax+endedMax)
	return w.file, err
}

func (m fileModel) key() modelKey {
	return modelKey{weights: m.Model.Weights, namespace: m.Model.Namespace, engine: m.Engine}
}

// check refuses content that this build would not have written. Series that only another build
// knows are kept: their totals must not fall.
func (f *file) check() error {
	var c checker
	c.require(f.Version == fileVersion, "it has version %d, and this program reads version %d", f.Version, fileVersion)
	c.require(len(f.Models) <= telemetry.ModelsMax, "it has more than %d models", telemetry.ModelsMax)
	c.require(len(f.Processes) <= telemetry.ProcessesMax+endedMax, "it has more than %d processes", telemetry.ProcessesMax+endedMax)
	c.time("the beginning", f.Since)
	c.time("a start", f.Dropped)
	keys := make(map[modelKey]bool)
	for _, m := range f.Models {
		c.require(!keys[m.key()], "a model is in it twice")
		keys[m.key()] = true
		c.fileModel(m)
	}
	c.require(len(f.Models) < telemetry.ModelsMax || keys[modelKey{}], "it has too many models with weights")
	processes := make(map[processKey]bool)
	for _, p := range f.Processes {
		key := keyOf(p.Process, p.Started)
		c.require(!processes[key], "a process is in it twice")
		processes[key] = true
		c.text("a boot", p.Process.Boot, bootBytesMax)
		c.text("an engine", p.Process.Engine, bootBytesMax)
		c.time("a start", p.Started)
		c.require(p.Model >= 0 && p.Model < len(f.Models), "a process has no model")
		if c.err != nil {
			return c.err
		}
		c.require(len(p.Totals) <= len(f.Models[p.Model].Series), "a process has more totals than its model")
		c.totals(p.Totals, totalMax)
	}
	return c.err
}

func (c *checker) fileModel(m fileModel) {
	c.model(m.Model)
	c.text("an engine", m.Engine, bootBytesMax)
	c.time("the last use", m.LastUsed)
	c.require(len(m.Series) <= telemetry.SeriesMax, "a model has more than %d series", telemetry.SeriesMax)
	c.require(len(m.Series) == len(m.Totals), "a model has %d series and %d totals", len(m.Series), len(m.Totals))
	seen, bytes := make(map[string]bool), 0
	for _, series := range m.Series {
		c.require(!seen[series], "a series is in it twice")
		c.text("a series", series, telemetry.NameBytesMax)
		seen[series], bytes = true, bytes+sizeOf(series)
	}
	c.require(bytes <= seriesBytesMax, "the names of a model's series have more than %d bytes", seriesBytesMax)
	c.totals(m.Totals, sumMax)
}

func (c *checker) totals(all []float64, most float64) {
	for _, total := range all {
		c.require(total >= 0 && total <= most, "a total is %g", total)
	}
}

// readAll reads a file of at most bytesMax bytes.
func readAll(fsys vfs.FS, path string, bytesMax int64) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, 0, bytesMax+1))
	if err == nil && int64(len(data)) > bytesMax {
		err = fmt.Errorf("%w: it is larger than %d bytes", errContent, bytesMax)
	}
	return data, err
}

// replace puts a file in the place of another in one step. Only the holder of the lock calls
// it, so the temporary name is always the same: a killed process leaves one such file.
func replace(fsys vfs.FS, path string, data []byte) error {
	tmp := path + ".tmp"
	if err := fsys.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := fsys.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = fsys.Rename(tmp, path)
	}
	if err != nil {
		_ = fsys.Remove(tmp)
	}
	return err
}
