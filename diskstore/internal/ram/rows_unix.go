//go:build unix

package ram

import "golang.org/x/sys/unix"

// allocRows returns n bytes outside the Go heap, or nil when the system has no memory. The
// caller frees them with freeRows.
func allocRows(n int) []byte {
	rows, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	nameRows(rows)
	return rows
}

// freeRows returns memory of allocRows to the system at once. rows may be nil.
func freeRows(rows []byte) {
	if rows != nil {
		_ = unix.Munmap(rows) // fails only for memory that is not a mapping
	}
}
