package tiering

import (
	"fmt"
	"os"
	"strings"
)

// startField is the index of starttime in /proc/<pid>/stat, counted from after the name,
// which may hold spaces itself.
const startField = 19

// startOf says when a process was started: in which boot, and how many clock ticks after
// it. It is empty where /proc does not say.
func startOf(pid int) string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) <= startField {
		return strings.TrimSpace(string(boot))
	}
	return strings.TrimSpace(string(boot)) + " " + fields[startField]
}
