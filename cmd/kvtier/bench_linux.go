package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// dropFile drops a durable file from the page cache. dropFile returns false where the system
// cannot.
func dropFile(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return false, fmt.Errorf("drop %s from memory: %w", path, err)
	}
	return true, nil
}
