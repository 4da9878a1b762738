package main

import "runtime"

// Machine describes the machine of a measurement, without naming it.
type Machine struct {
	OS          string  `json:"os"`
	Arch        string  `json:"arch"`
	CPU         string  `json:"cpu"`
	Cores       int     `json:"cores"`
	MemoryBytes int64   `json:"memory_bytes"`
	Kernel      string  `json:"kernel"`
	Filesystem  string  `json:"filesystem"`  // of the pages
	Virtual     bool    `json:"virtual"`     // it runs under a hypervisor
	BusyBefore  float64 `json:"busy_before"` // share of all cores in the second before
}

// busyShare is how much of a machine may be in use already before the figures
// suffer.
const busyShare = 0.1

// describeMachine asks the system; dir is the future directory of pages.
func describeMachine(dir string) Machine {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU()}
	m.fillIn(dir)
	return m
}
