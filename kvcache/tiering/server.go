package tiering

import (
	"fmt"
	"os"

	"github.com/kvtier/kvtier/internal/proc"
)

// server names the server that started this runner, so that a server's runners find each other. The
// name is the server's process id and start, which no other process of this machine shares.
func server() string {
	pid := os.Getppid()
	return fmt.Sprintf("%d %s", pid, startOf(pid))
}

// startOf is the start of a process: the id of the boot, and the clock ticks since then.
// Without /proc startOf is empty. A process id may then come back while pages of its last
// owner's runners are in memory; the cost is a share of the budget only.
func startOf(pid int) string {
	boot, _ := proc.Boot()
	stat, err := proc.Read(pid)
	if err != nil {
		return boot
	}
	return fmt.Sprintf("%s %d", boot, stat.Start)
}
