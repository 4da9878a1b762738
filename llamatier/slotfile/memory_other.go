//go:build !linux

package slotfile

import (
	"errors"
	"os"
)

// newMemory returns errors.ErrUnsupported: no other system has files in memory with a path.
func newMemory() (*os.File, string, error) { return nil, "", errors.ErrUnsupported }
