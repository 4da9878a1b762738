//go:build !linux

package priority

// Lower does nothing: threads have no priorities of their own on this system.
func Lower() {}
