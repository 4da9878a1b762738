//go:build !linux

package llamatier

import (
	"errors"
	"os"
)

// SavePath is known on Linux only.
func SavePath() string { return "" }

func newMemFile() (*os.File, string, error) {
	return nil, "", errors.New("files in memory are known on Linux only")
}
