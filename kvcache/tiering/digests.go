package tiering

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// digests remembers the SHA-256 of large files, so that a library of a gigabyte is hashed
// once and not at every load. A file counts as unchanged while its path, size and
// modification time are.
type digests struct {
	path    string // where they are kept; empty keeps them in memory only
	known   map[string]string
	changed bool
}

func openDigests(path string) *digests {
	d := &digests{path: path, known: make(map[string]string)}
	if data, err := os.ReadFile(path); err == nil {
		if json.Unmarshal(data, &d.known) != nil || d.known == nil {
			d.known = make(map[string]string)
		}
	}
	return d
}

func (d *digests) file(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	key := fmt.Sprintf("%s %d %d", path, info.Size(), info.ModTime().UnixNano())
	if digest, ok := d.known[key]; ok {
		return digest, nil
	}
	digest, err := hashFile(path)
	if err != nil {
		return "", err
	}
	d.known[key] = digest
	d.changed = true
	return digest, nil
}

// save replaces the remembered digests in one step. Failing to only costs hashing again.
func (d *digests) save() error {
	if !d.changed || d.path == "" {
		return nil
	}
	data, err := json.MarshalIndent(d.known, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(d.path), "digests-*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err := tmp.Write(data); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), d.path)
}
