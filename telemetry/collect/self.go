package collect

import (
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
