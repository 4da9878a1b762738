package collect

import (
	"errors"
	"io/fs"
	"os"

	"github.com/kvtier/kvtier/internal/proc"
	"github.com/kvtier/kvtier/telemetry"
)

// Self describes this process, for a [telemetry.Source]. Self leaves Boot and Start out where
// the system does not tell them.
func Self(engine string) telemetry.Process {
	p := telemetry.Process{PID: os.Getpid(), Engine: engine}
	stat, err := proc.Read(p.PID)
	if err != nil {
		return p
	}
	if boot, err := proc.Boot(); err == nil {
		p.Boot, p.Start = boot, stat.Start
	}
	return p
}

// isNoProcess reports whether reading a process's state failed because there is no such
// process, and not because of a /proc that is missing.
func isNoProcess(err error) bool {
	if !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	_, err = proc.Read(os.Getpid())
	return err == nil
}

// ended reports whether a process is certain not to run any more. Only a process in the same
// namespace of process ids may be asked for.
func ended(p telemetry.Process) bool {
	stat, err := proc.Read(p.PID)
	if err != nil {
		return isNoProcess(err)
	}
	return stat.Start != p.Start || stat.Ended()
}
