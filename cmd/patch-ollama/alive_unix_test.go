//go:build unix

package main

import (
	"syscall"

	"github.com/kvtier/kvtier/internal/proc"
)

// alive reports whether a process runs. A zombie, whose parent has not waited for it yet,
// does not run.
func alive(pid int) bool {
	if stat, err := proc.Read(pid); err == nil {
		return !stat.Ended()
	}
	return syscall.Kill(pid, 0) == nil
}
