package vfs

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"
)

// Reach says who sees the locks of a filesystem.
type Reach int

const (
	// ReachDisk: every process that uses the filesystem, for it is a disk of this
	// machine. Directories that the machine exports to others are different: their
	// locks and the machine's own may not see each other.
	ReachDisk Reach = iota

	// ReachAll: every machine that mounts it.
	ReachAll

	// ReachHost: this machine alone, or nobody knows. Locks succeed, and another
	// machine has its own.
	ReachHost
)

// Locking describes the locks of a filesystem.
type Locking struct {
	Reach Reach

	// Host names the running system and the mount, whose processes see each other's
	// locks wherever there are locks at all. On Linux and macOS it is another after a
	// restart, and for another mount of the same files: FUSE, 9P and SMB keep locks on
	// each. Elsewhere it is made of the host's name, and stays.
	Host string

	// Machine names the machine, and stays over its restarts; "" where that is not
	// known, as it is off Linux. Copies of a virtual machine may have one name.
	Machine string

	// Up is for how long the system has been running; 0 without a Machine.
	Up time.Duration

	// Why is the reason for Reach: the type and the deciding option of the mount.
	Why string
}

// disks are the types that a machine has for itself. An overlay's upper directory
// cannot be another machine's at the same time.
var disks = []string{
	"apfs", "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "hfs", "hfsplus", "jfs", "msdos",
	"nilfs2", "ntfs", "ntfs3", "overlay", "ramfs", "reiserfs", "rootfs", "tmpfs", "ubifs", "ufs", "vfat", "xfs", "zfs",
}

// localLocks are options that keep the locks of a network filesystem on the machine:
// those of NFS, of Lustre, of OCFS2 and of GFS2.
var localLocks = []string{"nolock", "local_lock=all", "local_lock=flock", "localflock", "localflocks"}

// reachOf tells who sees locks by the type and the options of a mount. Of SMB, 9P
// and FUSE neither says whether locks go to the server.
func reachOf(fsType string, options []string) (Reach, string) {
	switch {
	case slices.Contains(disks, fsType):
		return ReachDisk, fsType
	case !slices.Contains([]string{"nfs", "nfs4", "ceph", "gfs2", "lustre", "ocfs2"}, fsType):
		return ReachHost, fsType
	}
	for _, option := range options {
		if slices.Contains(localLocks, option) {
			return ReachHost, fsType + " with " + option
		}
	}
	return ReachAll, fsType
}

// host names the running system: short, and fit for a file's name.
var host = sync.OnceValue(func() string {
	return shortHash(runningSystem())
})

func shortHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:4])
}

// machineName makes a Locking.Machine of the text in /etc/machine-id and of the host's
// name. Copied images share the first, so both must be known.
func machineName(id, host string) string {
	id = strings.TrimSpace(id)
	if _, err := hex.DecodeString(id); err != nil || len(id) != 32 || host == "" || host == "localhost" {
		return ""
	}
	return shortHash("kvtier " + id + " " + host)
}

// hostOn returns Locking.Host for the files on one device of the running system.
func hostOn(device string) string { return shortHash(host() + " " + device) }

// mount is one line of /proc/self/mountinfo.
type mount struct {
	point, fsType string
	options       []string
}

// mountOf finds the mount that a path without links is on: the last of those whose
// mount point is the longest.
func mountOf(mountinfo, path string) (m mount, ok bool) {
	for line := range strings.Lines(mountinfo) {
		before, after, found := strings.Cut(strings.TrimSpace(line), " - ")
		fields, types := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 6 || len(types) < 3 {
			continue
		}
		point := unescapeMount.Replace(fields[4])
		below := strings.HasPrefix(path, strings.TrimSuffix(point, "/")+"/")
		if path != point && !below || len(point) < len(m.point) {
			continue
		}
		options := strings.Split(fields[5]+","+types[2], ",")
		m, ok = mount{point: point, fsType: types[0], options: options}, true
	}
	return m, ok
}

// unescapeMount undoes the kernel's escapes in the name of a mount point.
var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
