package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// startField is the index of starttime in /proc/<pid>/stat, counted after the process name,
// which may contain spaces.
const startField = 19

// processID names a process: the boot, the namespace of process numbers, the number, and the
// clock ticks from the boot to its start. It is empty where the system does not tell.
func processID(pid int) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) <= startField || fields[0] == "Z" {
		return ""
	}
	return fmt.Sprintf("%s %s %d %s", strings.TrimSpace(string(boot)), space, pid, fields[startField])
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
