package measure

import "runtime"

// Machine describes the machine of a measurement, without naming it.
type Machine struct {
	OS          string  `json:"os"`
	Arch        string  `json:"arch"`
	CPU         string  `json:"cpu"`
	Cores       int     `json:"cores"`
	MemoryBytes int64   `json:"memory_bytes"`
	Kernel      string  `json:"kernel"`
	Filesystem  string  `json:"filesystem"`  // filesystem of the pages
	Virtual     bool    `json:"virtual"`     // a hypervisor is present
	BusyBefore  float64 `json:"busy_before"` // share of all cores in use during the second before
}

// BusyShare is the share of a machine in use above which the figures suffer.
const BusyShare = 0.1

// Describe asks the system; dir is the future directory of pages.
func Describe(dir string) Machine {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU()}
	m.fillIn(dir)
	return m
}
