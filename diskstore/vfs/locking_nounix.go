//go:build !unix

package vfs

// hostAt returns Locking.Host, the same for all directories.
func hostAt(string) string { return host() }
