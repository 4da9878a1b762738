//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// alive says whether a process runs. One that has ended but whose parent, now
// init, has not asked about it yet does not.
func alive(pid int) bool {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		return !bytes.Contains(stat, []byte(") Z "))
	}
	return syscall.Kill(pid, 0) == nil
}
