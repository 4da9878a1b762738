package measure

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fillIn reads /proc; fields that /proc lacks stay empty.
func (m *Machine) fillIn(dir string) {
	cpu, _ := os.ReadFile("/proc/cpuinfo")
	m.CPU = procField(string(cpu), "model name")
	m.Virtual = strings.Contains(procField(string(cpu), "flags")+" ", " hypervisor ")
	memory, _ := os.ReadFile("/proc/meminfo")
	if kb, found := strings.CutSuffix(procField(string(memory), "MemTotal"), " kB"); found {
		n, _ := strconv.ParseInt(kb, 10, 64)
		m.MemoryBytes = n << 10
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m.Kernel = strings.TrimSpace(string(kernel))
	m.BusyBefore = busyShareNow()
	var stat unix.Statfs_t
	if unix.Statfs(dir, &stat) == nil {
		m.Filesystem = filesystemName(int64(stat.Type))
	}
}

// busyShareNow measures for a second the share of all cores in use.
func busyShareNow() float64 {
	before, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	<-time.After(time.Second)
	after, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	return busyBetween(string(before), string(after))
}

// busyBetween compares the first lines of two /proc/stat: "cpu", then time spent
// as user, nice, system, idle, waiting for disks, and more.
func busyBetween(before, after string) float64 {
	const idle, waiting = 4, 5
	first, _, _ := strings.Cut(before, "\n")
	second, _, _ := strings.Cut(after, "\n")
	was, is := strings.Fields(first), strings.Fields(second)
	var busy, all float64
	for i := 1; i < min(len(was), len(is)); i++ {
		from, _ := strconv.ParseFloat(was[i], 64)
		to, _ := strconv.ParseFloat(is[i], 64)
		all += to - from
		if i != idle && i != waiting {
			busy += to - from
		}
	}
	if all == 0 {
		return 0
	}
	return busy / all
}

// procField is the value of the first "name : value" line.
func procField(text, name string) string {
	for line := range strings.Lines(text) {
		key, value, found := strings.Cut(line, ":")
		if found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func filesystemName(magic int64) string {
	names := map[int64]string{
		unix.EXT4_SUPER_MAGIC:      "ext4",
		unix.XFS_SUPER_MAGIC:       "xfs",
		unix.BTRFS_SUPER_MAGIC:     "btrfs",
		unix.TMPFS_MAGIC:           "tmpfs",
		unix.OVERLAYFS_SUPER_MAGIC: "overlayfs",
		unix.NFS_SUPER_MAGIC:       "nfs",
		unix.F2FS_SUPER_MAGIC:      "f2fs",
	}
	if name, known := names[magic]; known {
		return name
	}
	return fmt.Sprintf("%#x", magic)
}

// DropCaches empties the whole page cache, which needs root.
func DropCaches() error {
	unix.Sync() // dirty pages are not dropped
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o200); err != nil {
		return fmt.Errorf("emptying the page cache: %w", err)
	}
	return nil
}
