package ollamatest

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// groupLeader keeps a console's Ctrl-C from reaching the server.
func groupLeader() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
}

// interrupt kills: a process without a console cannot be asked to end.
func (p *process) interrupt() error { return p.kill() }

// kill kills the server and every process whose parent it is.
func (p *process) kill() error {
	members, err := family(p.pid())
	if err != nil {
		return err
	}
	for _, m := range members {
		if err := killPID(m.pid); err != nil {
			return err
		}
	}
	return nil
}

func killPID(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil // the process has ended
	}
	defer p.Release() //nolint:errcheck // closing a handle
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("ending process %d: %w", pid, err)
	}
	return nil
}

// processTable takes a snapshot, which has no arguments.
func processTable() ([]processInfo, error) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil, err
	}
	defer windows.CloseHandle(snapshot) //nolint:errcheck // nothing was written

	var table []processInfo
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		table = append(table, processInfo{pid: int(entry.ProcessID), parent: int(entry.ParentProcessID)})
	}
	if !errors.Is(err, windows.ERROR_NO_MORE_FILES) {
		return nil, err
	}
	return table, nil
}
