//go:build unix

package ram

import "golang.org/x/sys/unix"

// allocRows returns n bytes outside the Go heap, nil when the system gives none.
// They are the caller's until freeRows.
func allocRows(n int) []byte {
	rows, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	return rows
}

// freeRows gives memory of allocRows back at once. Nil is fine.
func freeRows(rows []byte) {
	if rows != nil {
		_ = unix.Munmap(rows) // fails only for what is not a mapping
	}
}
