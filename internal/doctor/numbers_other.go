//go:build !linux && !darwin

package doctor

import "io/fs"

// noFollow is not known on this system.
const noFollow = 0

// numbers are not known on this system.
func numbers(fs.FileInfo) (device, inode uint64) { return 0, 0 }

// inodes are not counted on this system.
func inodes(string) (all, free uint64) { return 0, 0 }
