package collect

import (
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// silentAfter is the age from which a report is older than a process lets it become.
const silentAfter = 15 * time.Second

// tellSilent says why processes that run report no more, where their directory takes no files: that
// is also why nothing is stored there.
func tellSilent(s *telemetry.State, dir string) {
	for i := range s.Processes {
		p := &s.Processes[i]
		if p.Unstored != nil || s.At.Sub(p.At) < silentAfter {
			continue
		}
		if cause := takesNoFiles(dir); cause != "" {
			p.Unstored = &telemetry.Unstored{Cause: cause, Since: p.At}
		}
	}
}
