package llamatest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Memory is the number of bytes of memory that the server's processes take: memory that they map,
// shared pages divided among those that share them, and files in memory that they hold.
func (s *Server) Memory() (int64, error) {
	pids, err := s.Processes()
	if err != nil {
		return 0, err
	}
	var total int64
	files := make(map[uint64]bool)
	for _, pid := range pids {
		rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(rollup)) {
			if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
				kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
				total += kb << 10
			}
		}
		total += memoryFiles(pid, files)
	}
	return total, nil
}

// memoryFiles is the number of bytes of files in memory that a process holds and that were not
// seen before.
func memoryFiles(pid int, seen map[uint64]bool) (total int64) {
	open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range open {
		if name, _ := os.Readlink(fd); !strings.HasPrefix(name, "/memfd:") {
			continue
		}
		if info, err := os.Stat(fd); err == nil {
			stat := info.Sys().(*syscall.Stat_t)
			if !seen[stat.Ino] {
				seen[stat.Ino] = true
				total += stat.Blocks * 512
			}
		}
	}
	return total
}
