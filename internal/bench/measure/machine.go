package measure

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Machine describes the machine of a measurement, without naming it.
type Machine struct {
	OS          string  `json:"os"`
	Arch        string  `json:"arch"`
	CPU         string  `json:"cpu"`
	Cores       int     `json:"cores"`
	MemoryBytes int64   `json:"memory_bytes"`
	Kernel      string  `json:"kernel"`
	Filesystem  string  `json:"filesystem"`  // filesystem of the pages
	Virtual     bool    `json:"virtual"`     // a hypervisor is present
	BusyBefore  float64 `json:"busy_before"` // share of all cores in use during the second before
}

// BusyShare is the share of a machine in use above which the figures suffer.
const BusyShare = 0.1

// Describe asks Linux's /proc, without which most fields stay empty; dir is the directory of pages.
func Describe(dir string) Machine {
	cpu, memory := procFile("cpuinfo"), procFile("meminfo")
	m := Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(),
		CPU: procField(cpu, "model name"), Virtual: strings.Contains(procField(cpu, "flags")+" ", " hypervisor "),
		Kernel: strings.TrimSpace(procFile("sys/kernel/osrelease")), BusyBefore: busyShareNow(),
	}
	if kb, found := strings.CutSuffix(procField(memory, "MemTotal"), " kB"); found {
		n, _ := strconv.ParseInt(kb, 10, 64)
		m.MemoryBytes = n << 10
	}
	if dir, err := filepath.EvalSymlinks(dir); err == nil {
		m.Filesystem = filesystemOf(procFile("self/mounts"), dir)
	}
	return m
}

// procFile is the text of a file below /proc, "" without it.
func procFile(name string) string {
	text, _ := os.ReadFile(filepath.Join("/proc", name))
	return string(text)
}

// filesystemOf is the kind of the filesystem of an absolute path.
func filesystemOf(mounts, path string) (kind string) {
	longest := 0
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line) // device, mount point, kind
		if len(f) > 2 && len(f[1]) >= longest && strings.HasPrefix(path+"/", strings.TrimSuffix(f[1], "/")+"/") {
			longest, kind = len(f[1]), f[2]
		}
	}
	return kind
}

// busyShareNow measures for a second the share of all cores in use.
func busyShareNow() float64 {
	before := procFile("stat")
	if before == "" {
		return 0
	}
	<-time.After(time.Second)
	return busyBetween(before, procFile("stat"))
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

// DropCaches empties the whole page cache, which needs Linux and root.
func DropCaches() error {
	err := exec.Command("sync").Run() // dirty pages are not dropped
	if err == nil {
		err = os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o200)
	}
	if err != nil {
		return fmt.Errorf("emptying the page cache: %w", err)
	}
	return nil
}
