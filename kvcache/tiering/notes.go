package tiering

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/jsonfile"
	"github.com/kvtier/kvtier/internal/tierenv"
)

const (
	// forgetDir is the folder of notes in a server's local directory.
	forgetDir = "forget"

	notesMax     = 256
	noteBytesMax = 64 << 10
)

// note is a removal that must not be lost with this process: a runner that is still loaded may
// store pages after it. The next server that has the directory and the namespace repeats the
// removal and deletes the note, without asking whether its writer still runs.
type note struct {
	Namespace string   `json:"namespace"`
	Blobs     []string `json:"blobs"` // paths of weights and adapters
}

// keepNote writes a note, durably. Of more than notesMax the newest stay.
func keepNote(blobs ...string) error {
	c, err := tierenv.FromEnvironment(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if err := c.PrepareRoot(); err != nil {
		return err
	}
	dir := filepath.Join(c.Local, forgetDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	if paths := listNotes(dir); len(paths) >= notesMax {
		removeFiles(paths[:len(paths)-notesMax+1])
	}
	text, err := json.Marshal(note{Namespace: c.Namespace, Blobs: blobs})
	if err != nil {
		return err
	}
	return jsonfile.Keep(filepath.Join(dir, rand.Text()+".json"), text)
}

// recall repeats the removals that earlier servers have noted, in the background. A model that
// has been pulled again keeps its pages.
func (f *forgetting) recall() {
	c, err := tierenv.FromEnvironment(slog.New(slog.DiscardHandler))
	if err != nil {
		return // runners say so
	}
	dir := filepath.Join(c.Local, forgetDir)
	paths := listNotes(dir)
	if len(paths) == 0 || c.PrepareRoot() != nil {
		return
	}
	var blobs, ours []string
	for _, path := range paths {
		var n note
		if err := jsonfile.Read(path, noteBytesMax, &n); err == nil && n.Namespace != c.Namespace {
			continue
		}
		ours = append(ours, path)
		blobs = append(blobs, removed(n.Blobs)...)
	}
	f.start(blobs, func() { removeFiles(ours) })
}

// listNotes lists the files in a folder of notes, the oldest first; none without the folder.
func listNotes(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	written := func(e fs.DirEntry) time.Time {
		info, err := e.Info()
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int {
		return cmp.Or(written(a).Compare(written(b)), cmp.Compare(a.Name(), b.Name()))
	})
	var paths []string
	for _, e := range entries {
		paths = append(paths, filepath.Join(dir, e.Name()))
	}
	return paths
}

func removeFiles(paths []string) {
	for _, path := range paths {
		_ = os.Remove(path) // a note that stays is a removal of nothing at the next start
	}
}

// removed returns the paths of blobs that are gone: another model uses the others. Without their
// folder nothing is known, as on a disk that is not mounted yet.
func removed(blobs []string) (gone []string) {
	for _, path := range blobs {
		if _, ok := digests.OfBlob(path); ok && filepath.IsAbs(path) && isGone(path) && !isGone(filepath.Dir(path)) {
			gone = append(gone, path)
		}
	}
	return gone
}
