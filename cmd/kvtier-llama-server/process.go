//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/proc"
)

// processID names a process: the boot, the namespace of process numbers, the number, and the
// clock ticks from the boot to its start. It is empty where the system does not tell.
func processID(pid int) string {
	boot, bootErr := proc.Boot()
	space, spaceErr := os.Readlink("/proc/self/ns/pid")
	stat, statErr := proc.Read(pid)
	if errors.Join(bootErr, spaceErr, statErr) != nil || stat.Ended() {
		return ""
	}
	return fmt.Sprintf("%s %s %d %d", boot, space, pid, stat.Start)
}

// processAlive reports whether the process of an id runs; not known for one of another boot or
// namespace.
func processAlive(id string) (alive, known bool) {
	own, parts := strings.Fields(processID(os.Getpid())), strings.Fields(id)
	if len(parts) != 4 || len(own) != 4 || own[0] != parts[0] || own[1] != parts[1] {
		return false, false
	}
	pid, err := strconv.Atoi(parts[2])
	if err != nil || pid <= 0 {
		return false, false
	}
	return processID(pid) == id, true
}
