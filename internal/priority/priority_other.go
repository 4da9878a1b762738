//go:build !linux

package priority

// Lower does nothing where a thread has no priority of its own.
func Lower() {}
