package tiering

import (
	"fmt"
	"os"
	"strings"
)

// startField is the index of starttime in /proc/<pid>/stat, counted after the process name,
// which may contain spaces.
const startField = 19

// startOf is the start of a process: the id of the boot, and the clock ticks since then.
// startOf is empty without /proc.
func startOf(pid int) string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) <= startField {
		return strings.TrimSpace(string(boot))
	}
	return strings.TrimSpace(string(boot)) + " " + fields[startField]
}
