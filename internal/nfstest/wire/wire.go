// Package wire has the messages between a test and the machines that the test has started. Each
// message is a line of JSON.
package wire

// Request asks a machine to run a command.
type Request struct {
	ID   int
	Args []string
	Env  []string `json:",omitempty"` // in addition to the machine's own

	// Kill is the ID of a running command. A request with Kill kills that command and runs none.
	Kill int `json:",omitempty"`
}

// Reply is a part of a command's output, or the end of the command.
type Reply struct {
	ID     int
	Output string `json:",omitempty"`
	Done   bool   `json:",omitempty"`
	Code   int    `json:",omitempty"` // exit status; -1 for a command that was killed or not started
	Err    string `json:",omitempty"` // the reason why the command was not started
}

// Port is the pattern of the channel's device inside a machine. The first number in its name is
// that of the bus's device.
const Port = "/dev/vport*p1"

// Parameters of the kernel's command line that describe a machine to its first process.
const (
	ParamName    = "kvtier.name="    // the host's name
	ParamAddress = "kvtier.address=" // IPv4, of a network of 256 addresses
	ParamClock   = "kvtier.clock="   // seconds by which the clock is ahead
)

// WriteReport is the result of the guest's write.
type WriteReport struct {
	Puts, PutErrors, Demoted, Evicted, TierErrors, Damaged uint64
	RemoteBooked                                           int64
	LongestPut                                             string // of a page to the local tier
	Down                                                   bool
}

// ReadReport is the result of the guest's read.
type ReadReport struct {
	Found   int // pages found in the remote tier, with the right content
	Missing int
	Failed  int // pages that were found and could not be read
	Damaged uint64
}

// UsageReport is the result of the guest's usage.
type UsageReport struct {
	Most  int64            // bytes on the disk
	Files map[string]int64 // path → bytes, when these were the most
}
