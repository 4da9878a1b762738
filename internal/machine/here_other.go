//go:build !linux && !darwin

package machine

// noFollow is not known on this system.
const noFollow = 0

// inodes are not counted on this system.
func inodes(string) (all, free uint64) { return 0, 0 }
