package collect

import (
	"sync"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// silentAfter is the age from which a report is older than a process lets it become.
const silentAfter = 15 * time.Second

// tellSilent says why processes that run report no more, where their directory takes no files: that
// is also why nothing is stored there.
func tellSilent(s *telemetry.State, dir string) {
	why := sync.OnceValue(func() telemetry.Obstacle { return takesNoFiles(dir) })
	for i := range s.Processes {
		p := &s.Processes[i]
		if p.Unstored != nil || s.At.Sub(p.At) < silentAfter {
			continue
		}
		if cause := why(); cause != "" {
			p.Unstored = &telemetry.Unstored{Cause: cause, Since: p.At}
		}
	}
}
