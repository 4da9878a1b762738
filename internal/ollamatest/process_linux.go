package ollamatest

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/kvtier/kvtier/internal/proc"
)

// groupLeader makes a process the leader of its own group, which receives SIGTERM when this
// process ends in any way. SIGKILL would not do: only the server can end its runners then.
func groupLeader() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// processTable reads /proc, without processes that end meanwhile and without zombies, which hold nothing.
func processTable() ([]processInfo, error) {
	all, err := proc.All()
	if err != nil {
		return nil, err
	}
	var table []processInfo
	for pid, stat := range all {
		if stat.Ended() {
			continue
		}
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue
		}
		args := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		table = append(table, processInfo{pid: pid, parent: stat.Parent, group: stat.Group, args: args})
	}
	return table, nil
}
