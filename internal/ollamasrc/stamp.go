package ollamasrc

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// digestFiles hashes names and contents of the files under root's entries that keep accepts.
// Missing entries count as empty.
func digestFiles(root string, entries []string, keep func(name string) bool) (string, error) {
	h := sha256.New()
	for _, entry := range entries {
		err := filepath.WalkDir(filepath.Join(root, entry), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || !keep(d.Name()) {
				return err
			}
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			return hashFile(h, filepath.ToSlash(rel), path)
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("hashing %s: %w", Rel(filepath.Join(root, entry)), err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func hashFile(h hash.Hash, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	fmt.Fprintf(h, "%s %d\n", name, info.Size())
	_, err = io.Copy(h, f)
	return err
}
