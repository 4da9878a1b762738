//go:build linux || darwin

package collect

import (
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/telemetry"
)

// readOnly is ST_RDONLY of Linux, and MNT_RDONLY of macOS.
const readOnly = 1

// takesNoFiles is why a directory takes no new file of a report's size, "" where it does.
func takesNoFiles(dir string) telemetry.Obstacle {
	var st unix.Statfs_t
	switch {
	case unix.Statfs(vfs.Through(dir), &st) != nil:
		return ""
	case st.Flags&readOnly != 0:
		return telemetry.ObstacleReadOnly
	case uint64(st.Bavail)*uint64(st.Bsize) < telemetry.ReportBytesMax:
		return telemetry.ObstacleFull
	case st.Files > 0 && st.Ffree == 0: // some filesystems count none
		return telemetry.ObstacleInodes
	}
	return ""
}
