//go:build !linux

package diskstore

// lowerPriority does nothing where a thread has no priority of its own.
func lowerPriority() {}

// inPageCache reports that nobody can tell.
func inPageCache(Blob) bool { return false }
