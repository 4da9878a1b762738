package doctor

import (
	"context"
	"io/fs"
	"time"

	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
)

// Environment is the machine that is looked at. Methods may hang; those with a context end soon
// after it. Methods are called from several goroutines.
type Environment interface {
	OS() string // as runtime.GOOS
	Now() time.Time

	// User runs this program. Account returns a user by name, and AccountOf by number.
	User() Account
	Account(name string) (Account, bool)
	AccountOf(uid int) (Account, bool)

	// Variables are those of this program.
	Variables() map[string]string

	// Find returns the path of a program that a shell would run; Run runs it and returns its
	// output.
	Find(program string) (string, error)
	Run(ctx context.Context, program string, args ...string) (string, error)

	// Read returns the beginning of a regular file, at most so many bytes. List returns names
	// in a directory, at most so many, in order. Both refuse a link.
	Read(path string, most int) ([]byte, error)
	List(path string, most int) ([]string, error)

	// Stat describes a path: a link itself. Resolve returns a path without links.
	Stat(path string) (File, error)
	Resolve(path string) (string, error)

	// Disk describes the filesystem that a path is on.
	Disk(path string) (Disk, error)

	// Probe makes an empty file in a directory and removes it.
	Probe(dir string) (Probe, error)

	// Build says how a program of Go was built. Model returns the architecture of a GGUF file.
	Build(executable string) (Build, error)
	Model(path string) (architecture string, err error)

	// Installed lists the installations of Ollama, none without an error.
	Installed(ctx context.Context) ([]install.Status, error)

	// Telemetry returns the state that the collector of a directory of pages knows.
	Telemetry(ctx context.Context, root string) (telemetry.State, error)
}

// Account is a user.
type Account struct {
	UID        int // -1 where users have no numbers
	Name, Home string
}

// File describes a file.
type File struct {
	Mode fs.FileMode
	UID  int // -1 where files have no owner
}

// Disk describes a filesystem. Sizes are in bytes.
type Disk struct {
	Total, Free        int64
	Inodes, InodesFree uint64 // 0 of 0 where inodes are not counted
	RAM                bool   // in memory
}

// Probe is a file that was made and removed.
type Probe struct {
	Before, After time.Time // this machine's clock, around the file's creation
	Modified      time.Time // the clock of the filesystem, in between
}

// Build is how a program was built.
type Build struct {
	Patched bool            // it contains kvtier
	Ops     map[string]bool // names of operations of ggml in it; nil if it was not looked at
}

// readLinked reads a file that a link may lead to, such as one of the system's.
func readLinked(e Environment, path string, most int) ([]byte, error) {
	if real, err := e.Resolve(path); err == nil {
		path = real
	}
	return e.Read(path, most)
}
