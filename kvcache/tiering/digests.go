package tiering

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/kvtier/kvtier/internal/jsonfile"
)

// Limits of what is remembered. An engine has some twenty files.
const (
	digestsMax          = 256
	digestPathBytesMax  = 1024
	digestFileBytesMax  = 1 << 20 // more than all of these together
	digestFormatVersion = 2       // changes when the meaning of a field does
)

// settledAfter is how long a file must have been left alone before its digest is
// remembered. Within one tick of a filesystem's clock, 2 s on FAT, a file can change and
// keep its times; the rest is for shares whose server has another clock than this machine.
const settledAfter = time.Minute

// digests remembers the SHA-256 of large files, so that a library of a gigabyte is hashed
// once and not at every load. A digest is only used again while [fileState] is the same.
type digests struct {
	path    string // where they are kept; empty keeps them in memory only
	known   map[string]digestRecord
	changed bool
	now     func() time.Time
}

// digestRecord is what is remembered of one path.
type digestRecord struct {
	State  fileState `json:"state"`
	SHA256 string    `json:"sha256"`
	Used   int64     `json:"used"` // Unix seconds
}

// fileState is what the system says of an open file: another content means another state,
// but for a change within settledAfter of the last one. Device and Inode change where the
// file is replaced, Changed (the inode's own time, which no program can set) where it is
// written to and its modification time restored.
type fileState struct {
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

var sha256Name = regexp.MustCompile(`^[0-9a-f]{64}$`)

// openDigests returns what is remembered in a file. One that is missing or cannot be used
// is as if nothing was.
func openDigests(path string) *digests {
	d := &digests{path: path, known: make(map[string]digestRecord), now: time.Now}
	content, err := readDigests(path)
	if err != nil || content.Version != digestFormatVersion {
		return d
	}
	maps.DeleteFunc(content.Files, func(path string, r digestRecord) bool {
		return len(path) > digestPathBytesMax || !sha256Name.MatchString(r.SHA256)
	})
	maps.Copy(d.known, content.Files)
	return d
}

func readDigests(path string) (content digestFile, err error) {
	err = jsonfile.Read(path, digestFileBytesMax, &content)
	return content, err
}

// file is the SHA-256 of a file.
func (d *digests) file(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return d.opened(path, f)
}

// opened is the SHA-256 of an open file, remembered under its path.
func (d *digests) opened(path string, f *os.File) (string, error) {
	now := d.now()
	state, err := stateOf(f)
	if err != nil {
		return "", err
	}
	if known, ok := d.known[path]; ok && known.State == state {
		known.Used = now.Unix()
		d.known[path] = known
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
	if state.settled(now) && len(path) <= digestPathBytesMax {
		d.known[path] = digestRecord{State: state, SHA256: digest, Used: now.Unix()}
		d.changed = true
	}
	return digest, nil
}

// settled reports whether a change from now on shows in the times. One in the future says
// nothing about when the file last changed.
func (s fileState) settled(now time.Time) bool {
	return now.Sub(time.Unix(0, max(s.Modified, s.Changed))) > settledAfter
}

// save replaces the remembered digests in one step. Failing to only costs hashing again.
func (d *digests) save() error {
	if !d.changed || d.path == "" {
		return nil
	}
	data, err := json.MarshalIndent(digestFile{Version: digestFormatVersion, Files: d.latest()}, "", "  ")
	if err != nil {
		return err
	}
	return jsonfile.Replace(d.path, data)
}

// latest are the digestsMax that were used last, of files that are still there.
func (d *digests) latest() map[string]digestRecord {
	there := maps.Clone(d.known)
	maps.DeleteFunc(there, func(path string, _ digestRecord) bool {
		_, err := os.Stat(path)
		return errors.Is(err, fs.ErrNotExist)
	})
	paths := slices.SortedFunc(maps.Keys(there), func(a, b string) int {
		return cmp.Or(cmp.Compare(there[b].Used, there[a].Used), cmp.Compare(a, b))
	})
	for _, path := range paths[min(digestsMax, len(paths)):] {
		delete(there, path)
	}
	return there
}
