//go:build unix && !linux

package ollamatest

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// groupLeader makes a process the leader of a group of its own.
func groupLeader() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// processTable asks ps; zombies are left out. Arguments with spaces come apart, which does
// not matter to a search for a flag.
func processTable() ([]processInfo, error) {
	out, err := exec.Command("ps", "-axo", "pid=,ppid=,pgid=,state=,command=").Output()
	if err != nil {
		return nil, fmt.Errorf("running ps: %w", err)
	}
	var table []processInfo
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || strings.HasPrefix(fields[3], "Z") {
			continue
		}
		var ids [3]int
		for i := range ids {
			if ids[i], err = strconv.Atoi(fields[i]); err != nil {
				return nil, fmt.Errorf("reading ps's line %q: %w", line, err)
			}
		}
		table = append(table, processInfo{pid: ids[0], parent: ids[1], group: ids[2], args: fields[4:]})
	}
	return table, nil
}
