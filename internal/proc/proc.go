// Package proc reads the state of processes from Linux's /proc. On other systems its functions
// return errors.
package proc

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Stat is a part of /proc/PID/stat.
type Stat struct {
	State  byte // R, S, Z and so on; see Ended
	Parent int
	Group  int
	Start  uint64 // clock ticks from the boot to the start of the process
}

// Ended reports whether the process has ended, and its parent has not waited for it yet.
func (s Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// Fields of /proc/PID/stat, counted after the name.
const (
	stateField  = 0
	parentField = 1
	groupField  = 2
	startField  = 19
)

// Read returns the Stat of a process.
func Read(pid int) (Stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, err
	}
	return parse(string(text))
}

// parse reads "PID (NAME) STATE PARENT GROUP …". The kernel puts the name there as it is, with
// any spaces, parentheses and newlines; no later field has a parenthesis.
func parse(text string) (s Stat, err error) {
	nameEnd := strings.LastIndexByte(text, ')')
	fields := strings.Fields(text[nameEnd+1:])
	if nameEnd < 0 || len(fields) <= startField || len(fields[stateField]) != 1 {
		return Stat{}, fmt.Errorf("not the stat of a process: %q", text)
	}
	parent, parentErr := strconv.Atoi(fields[parentField])
	group, groupErr := strconv.Atoi(fields[groupField])
	start, startErr := strconv.ParseUint(fields[startField], 10, 64)
	if err := errors.Join(parentErr, groupErr, startErr); err != nil {
		return Stat{}, fmt.Errorf("not the stat of a process: %q: %w", text, err)
	}
	return Stat{State: fields[stateField][0], Parent: parent, Group: group, Start: start}, nil
}

// All returns the Stat of every process by its number. All leaves out processes that end
// meanwhile.
func All() (map[int]Stat, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	all := make(map[int]Stat)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue // not a process
		}
		if stat, err := Read(pid); err == nil {
			all[pid] = stat
		}
	}
	return all, nil
}

// Below lists the processes that descend from another, its children first.
func Below(pid int) ([]int, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	children := make(map[int][]int)
	for _, child := range slices.Sorted(maps.Keys(all)) {
		children[all[child].Parent] = append(children[all[child].Parent], child)
	}
	below := slices.Clone(children[pid])
	for i := 0; i < len(below); i++ {
		below = append(below, children[below[i]]...)
	}
	return below, nil
}

// Boot returns an id that changes with each start of the system.
func Boot() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
