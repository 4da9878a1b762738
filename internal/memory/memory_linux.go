package memory

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
)

// Available is the number of bytes that the system can give without swapping, within the
// limits of the process's control groups.
func Available() (uint64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	available, err := memAvailable(string(text))
	if err != nil {
		return 0, err
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return available, nil
	}
	for _, dir := range groupDirs(string(groups)) {
		if left, ok := groupLeft(dir); ok {
			available = min(available, left)
		}
	}
	return available, nil
}

func memAvailable(meminfo string) (uint64, error) {
	lines := bufio.NewScanner(strings.NewReader(meminfo))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 2 && fields[0] == "MemAvailable:" {
			kib, err := strconv.ParseUint(fields[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read MemAvailable in /proc/meminfo: %w", err)
			}
			return kib * 1024, nil
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}

// groupDirs are the directories of a process's memory control groups, from its own up: the
// limit of each of them applies.
func groupDirs(cgroup string) []string {
	var dirs []string
	for line := range strings.SplitSeq(strings.TrimSpace(cgroup), "\n") {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 {
			continue
		}
		root := "/sys/fs/cgroup"
		switch {
		case parts[0] == "0" && parts[1] == "":
		case strings.Contains(","+parts[1]+",", ",memory,"):
			root += "/memory"
		default:
			continue
		}
		for p := path.Clean("/" + parts[2]); ; p = path.Dir(p) {
			dirs = append(dirs, root+p)
			if p == "/" {
				break
			}
		}
	}
	return dirs
}

// groupLeft is the number of bytes that a control group, of version 2 or 1, still allows.
func groupLeft(dir string) (uint64, bool) {
	for _, files := range [][2]string{{"memory.max", "memory.current"}, {"memory.limit_in_bytes", "memory.usage_in_bytes"}} {
		limit, ok := number(path.Join(dir, files[0]))
		if !ok {
			continue
		}
		used, ok := number(path.Join(dir, files[1]))
		if !ok {
			continue
		}
		return limit - min(limit, used), true
	}
	return 0, false
}

// number reads a file with one number; "max" is no number.
func number(file string) (uint64, bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
