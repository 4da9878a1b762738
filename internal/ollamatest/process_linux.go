package ollamatest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// groupLeader makes a process the leader of its own group, which receives SIGTERM when this
// process ends in any way. SIGKILL would not do: only the server can end its runners then.
func groupLeader() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// processTable reads /proc, without processes that end meanwhile and without zombies, which
// hold nothing.
func processTable() ([]processInfo, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var table []processInfo
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		state, parent, group, ok := parseStat(string(stat))
		if !ok || state == "Z" || state == "X" {
			continue
		}
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue
		}
		args := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		table = append(table, processInfo{pid: pid, parent: parent, group: group, args: args})
	}
	return table, nil
}

// parseStat reads "pid (name) state parent group …"; the name may hold spaces
// and parentheses.
func parseStat(stat string) (state string, parent, group int, ok bool) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 3 {
		return "", 0, 0, false
	}
	parent, parentErr := strconv.Atoi(fields[1])
	group, groupErr := strconv.Atoi(fields[2])
	return fields[0], parent, group, parentErr == nil && groupErr == nil
}
