// Package jsonfile keeps small JSON files. Most may be lost, because their content can be
// determined again.
package jsonfile

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/diskstore/vfs"
)

// Read reads a file of at most bytesMax bytes and refuses links.
func Read(path string, bytesMax int, content any) error {
	f, err := vfs.OS.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, 0, int64(bytesMax)+1))
	if err != nil {
		return err
	}
	if len(data) > bytesMax {
		return fmt.Errorf("%s is larger than %d bytes", path, bytesMax)
	}
	return json.Unmarshal(data, content)
}

// Replace puts a file in the place of another in one step. A power cut may lose it.
func Replace(path string, data []byte) error { return replace(vfs.OS, path, data, false) }

// Keep does as Replace, and returns once a power cut loses neither content nor name.
func Keep(path string, data []byte) error { return replace(vfs.OS, path, data, true) }

func replace(fsys vfs.FS, path string, data []byte, durable bool) error {
	tmp := strings.TrimSuffix(path, ".json") + "-" + rand.Text() + ".tmp"
	f, err := fsys.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && durable {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = fsys.Rename(tmp, path)
	}
	if err != nil {
		_ = fsys.Remove(tmp)
		return err
	}
	if durable {
		return fsys.SyncDir(filepath.Dir(path))
	}
	return nil
}
