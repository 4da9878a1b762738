package collect

import (
	"github.com/kvtier/kvtier/elastic/segment"
	"github.com/kvtier/kvtier/telemetry"
)

// addElastic adds the segments of processes to a state. What cannot be listed, as on other systems than Linux, is
// left out: package segment tells tools why.
func addElastic(s *telemetry.State, list func(users ...uint32) ([]segment.Segment, error)) {
	segments, err := list()
	if err != nil {
		return
	}
	for i := range s.Processes {
		p := &s.Processes[i]
		for _, seg := range segments {
			if seg.PID == p.Process.PID && seg.PID != 0 && seg.State == segment.Live {
				p.Elastic = append(p.Elastic, telemetry.Elastic{Segment: seg.Name, Used: seg.Used, Kept: seg.Kept, Limit: seg.Limit})
			}
		}
	}
}
