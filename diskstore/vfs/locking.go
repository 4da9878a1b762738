package vfs

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"
)

// Reach is the set of processes that see the locks of a filesystem.
type Reach int

const (
	// ReachDisk: every process that uses the filesystem, which is a disk of this machine. Directories that
	// the machine exports are an exception: locks of other machines and its own may not see each other.
	ReachDisk Reach = iota

	// ReachAll: processes on every machine that mounts the filesystem.
	ReachAll

	// ReachHost: this machine's processes only, or unknown. Locks succeed, and another
	// machine has its own locks.
	ReachHost
)

// Locking describes the locks of a filesystem.
type Locking struct {
	Reach Reach

	// Host names the running system and the mount. Processes with the same Host see each
	// other's locks, if the filesystem has locks. On Linux and macOS, Host changes with a
	// restart, and differs between mounts of the same files, because FUSE, 9P and SMB keep
	// locks on each mount. On other systems Host is made of the host's name, and stays.
	Host string

	// Machine names the machine across restarts; "" if unknown, as on all systems except
	// Linux. Copies of a virtual machine may share a name.
	Machine string

	// Up is the time since the system started; 0 without a Machine.
	Up time.Duration

	// Why is the reason for Reach: the mount's type and deciding option.
	Why string
}

// disks are the types of filesystems that belong to one machine. An overlay's upper
// directory cannot be in use by another machine.
var disks = []string{
	"apfs", "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "hfs", "hfsplus", "jfs", "msdos",
	"nilfs2", "ntfs", "ntfs3", "overlay", "ramfs", "reiserfs", "rootfs", "tmpfs", "ubifs", "ufs", "vfat", "xfs", "zfs",
}

// localLocks are options of NFS, Lustre, OCFS2 and GFS2 that keep locks on this machine.
var localLocks = []string{"nolock", "local_lock=all", "local_lock=flock", "localflock", "localflocks"}

// reachOf finds the reach of locks by the type and the options of a mount. For SMB, 9P and
// FUSE these do not show whether locks go to the server.
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

// host names the running system, in a short form for file names.
var host = sync.OnceValue(func() string {
	return shortHash(runningSystem())
})

func shortHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:4])
}

// machineName makes a Locking.Machine of the text in /etc/machine-id and the host's name.
// Both must be known, because copied images share the first.
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

// mountOf finds the mount of a path without links: the last mount with the longest matching mount point.
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
