//go:build unix && !linux

package vfs

import "golang.org/x/sys/unix"

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC

// openDirAt opens the directory rel below top, and refuses links.
func openDirAt(top int, rel string) (int, error) { return walkDirAt(top, rel) }
