package collect

import (
	"sync"

	"github.com/kvtier/kvtier/telemetry"
)

// tellSilent says why processes that run report no more, where their directory takes no files: that
// is also why nothing is stored there.
func tellSilent(s *telemetry.State, dir string) {
	why := sync.OnceValue(func() telemetry.Obstacle { return takesNoFiles(dir) })
	for i := range s.Processes {
		p := &s.Processes[i]
		if p.Unstored != nil || s.At.Sub(p.At) < telemetry.SilentAfter {
			continue
		}
		if cause := why(); cause != "" {
			p.Unstored = &telemetry.Unstored{Cause: cause, Since: p.At}
		}
	}
}
