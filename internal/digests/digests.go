// Package digests identifies the code and the weights that a server computes with: SHA-256 of
// large files, remembered between starts.
package digests

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kvtier/kvtier/internal/jsonfile"
)

// Limits of the digest file. An engine has some twenty files.
const (
	digestsMax          = 256
	digestPathBytesMax  = 1024
	digestFileBytesMax  = 1 << 20 // above the size of a file with all limits reached
	digestFormatVersion = 2       // changes when the meaning of a field changes
)

// settledAfter is the time that a file must have been unchanged before its digest is
// remembered. Within one tick of a filesystem's clock, 2 s on FAT, a file can change and
// keep its times. The margin is for shares whose server has another clock than this machine.
const settledAfter = time.Minute

// Files remembers the SHA-256 of large files, so that a library of a gigabyte is hashed
// once and not at every load. A remembered digest is valid while [State] is the same.
type Files struct {
	path    string // the digest file; empty: in memory only
	known   map[string]digestRecord
	changed bool
	now     func() time.Time
}

// digestRecord is the remembered digest of one path.
type digestRecord struct {
	State  State  `json:"state"`
	SHA256 string `json:"sha256"`
}

// State identifies the content of an open file. A change of content changes the state,
// except within settledAfter of the last change. Device and Inode change when the file is
// replaced. Changed, the inode's own time, cannot be set by programs: it changes even when a
// program writes to the file and restores the modification time.
type State struct {
	Device   uint64 `json:"device"`
	Inode    uint64 `json:"inode"`
	Size     int64  `json:"size"`
	Modified int64  `json:"modified"` // Unix nanoseconds
	Changed  int64  `json:"changed"`  // Unix nanoseconds
}

// digestFile is the file that digests are kept in.
type digestFile struct {
	Version int                     `json:"version"`
	Files   map[string]digestRecord `json:"files"` // by path
}

// StateOf returns the present state of a file. Two states are the same only if nobody has replaced
// the file, or written to it, between them.
func StateOf(path string) (State, error) {
	f, err := os.Open(path)
	if err != nil {
		return State{}, err
	}
	defer f.Close()
	return stateOf(f)
}

var sha256Name = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Open reads a digest file. A file that is missing or cannot be used gives no
// digests.
func Open(path string) *Files {
	d := &Files{path: path, known: make(map[string]digestRecord), now: time.Now}
	var content digestFile
	if err := jsonfile.Read(path, digestFileBytesMax, &content); err != nil || content.Version != digestFormatVersion {
		return d
	}
	maps.DeleteFunc(content.Files, func(path string, r digestRecord) bool {
		return len(path) > digestPathBytesMax || !sha256Name.MatchString(r.SHA256)
	})
	maps.Copy(d.known, content.Files)
	return d
}

// File is the SHA-256 of a file.
func (d *Files) File(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return d.Opened(path, f)
}

// Opened is the SHA-256 of an open file, remembered under its path.
func (d *Files) Opened(path string, f *os.File) (string, error) {
	state, err := stateOf(f)
	if err != nil {
		return "", err
	}
	if known, ok := d.known[path]; ok && known.State == state {
		return known.SHA256, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	after, err := stateOf(f)
	if err != nil {
		return "", err
	}
	if after != state {
		return "", fmt.Errorf("%s changed while it was read; load the model again", path)
	}
	digest := hex.EncodeToString(h.Sum(nil))
	if state.settled(d.now()) && len(path) <= digestPathBytesMax {
		d.known[path] = digestRecord{state, digest}
		d.changed = true
	}
	return digest, nil
}

// settled reports whether every change from now on shows in the file's times. A time in the
// future does not tell when the file last changed.
func (s State) settled(now time.Time) bool {
	return now.Sub(time.Unix(0, max(s.Modified, s.Changed))) > settledAfter
}

// Save replaces the digest file in one step. A failure only costs hashing again.
func (d *Files) Save() error {
	if !d.changed || d.path == "" {
		return nil
	}
	data, err := json.MarshalIndent(digestFile{Version: digestFormatVersion, Files: d.present()}, "", "  ")
	if err != nil {
		return err
	}
	return jsonfile.Replace(d.path, data)
}

// present returns records whose files still exist, at most digestsMax.
func (d *Files) present() map[string]digestRecord {
	there := maps.Clone(d.known)
	maps.DeleteFunc(there, func(path string, _ digestRecord) bool {
		_, err := os.Stat(path)
		return errors.Is(err, fs.ErrNotExist)
	})
	paths := slices.Sorted(maps.Keys(there))
	for _, path := range paths[min(digestsMax, len(paths)):] {
		delete(there, path)
	}
	return there
}

// All are the sorted digests of files, independent of their paths.
func (d *Files) All(paths []string) ([]string, error) {
	var digests []string
	for _, path := range paths {
		digest, err := d.File(path)
		if err != nil {
			return nil, err
		}
		digests = append(digests, digest)
	}
	slices.Sort(digests)
	return digests, nil
}

// OfBlob returns the SHA-256 in the name of a blob, which Ollama verified when writing the blob; false for
// another file.
func OfBlob(path string) (string, bool) {
	digest, ok := strings.CutPrefix(filepath.Base(path), "sha256-")
	if !ok || !sha256Name.MatchString(digest) {
		return "", false
	}
	return digest, true
}

// Weights is the SHA-256 of a model file, in hex.
func (d *Files) Weights(path string) (string, error) {
	if digest, ok := OfBlob(path); ok {
		return digest, nil
	}
	return d.File(path)
}

// computes matches the names of libraries that decide low bits: those of ggml and llama.cpp, and
// libraries for matrix products, in any directory. The C library and drivers are left out:
// with them, every update of the system would make all pages useless.
var computes = regexp.MustCompile(`(?i)ggml|libllama|libmtmd|blas|blis|libmkl|cudart|amdhip`)

// isLibrary matches the names of shared libraries of all systems.
var isLibrary = regexp.MustCompile(`(?i)\.(so(\.[0-9.]+)?|dylib|dll)$`)

// LibrariesIn lists all libraries in directories, and ggml's other files, such as shaders. A
// missing directory has none.
func LibrariesIn(dirs []string) ([]string, error) {
	var paths []string
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if !e.IsDir() && (isLibrary.MatchString(e.Name()) || computes.MatchString(e.Name())) {
				paths = append(paths, filepath.Join(dir, e.Name()))
			}
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

// Mapped lists, from the text of /proc/self/maps, the libraries in the engine's own
// directories, and compute libraries in any directory.
func Mapped(maps string, dirs []string) ([]string, error) {
	var paths []string
	for line := range strings.SplitSeq(maps, "\n") {
		i := strings.IndexByte(line, '/')
		if i < 0 {
			continue
		}
		path, deleted := strings.CutSuffix(line[i:], " (deleted)")
		if !isLibrary.MatchString(path) || !slices.Contains(dirs, filepath.Dir(path)) && !computes.MatchString(filepath.Base(path)) {
			continue
		}
		if deleted {
			return nil, fmt.Errorf("%s was replaced after it was loaded; load the model again", path)
		}
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}
