//go:build !linux

package vfs

import "os"

// isRAM returns false: outside Linux, /tmp is rarely in memory, and no filesystem type shows it.
func isRAM(string) (bool, error) { return false, nil }

// uncache does nothing: these systems have no such call.
func uncache(*os.File) error { return nil }
