//go:build !linux

package vfs

import "os"

// isRAM cannot tell: outside Linux /tmp is rarely in memory, and no file system
// type is reserved for it.
func isRAM(string) (bool, error) { return false, nil }

// uncache does nothing: a file that is opened anew is all there is.
func uncache(*os.File) error { return nil }
