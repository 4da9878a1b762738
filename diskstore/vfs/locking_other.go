//go:build !linux && !darwin

package vfs

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// lockingAt knows only Windows, where servers keep the locks of their shares.
func lockingAt(name string) (Locking, error) {
	l := Locking{Reach: ReachHost, Host: hostAt(name), Why: runtime.GOOS}
	if runtime.GOOS == "windows" {
		l.Reach = ReachDisk
		if strings.HasPrefix(filepath.VolumeName(name), `\\`) {
			l.Reach, l.Why = ReachAll, "a share of Windows"
		}
	}
	return l, nil
}

// runningSystem is the same after a restart.
func runningSystem() string {
	name, _ := os.Hostname() // all systems without a name look like one
	return name
}
