package collect

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/elastic/segment"
	"github.com/kvtier/kvtier/telemetry"
)

// The segments that live processes hold are theirs; those of others, and of the dead, are nobody's.
func TestElasticMemoryOfProcesses(t *testing.T) {
	s := telemetry.State{Processes: []telemetry.ProcessState{{Process: telemetry.Process{PID: 7}}, {Process: telemetry.Process{PID: 8}}, {}}}
	list := func(...uint32) ([]segment.Segment, error) {
		return []segment.Segment{
			{Name: "a", PID: 7, State: segment.Live, Used: 5, Kept: 2, Limit: 9},
			{Name: "b", PID: 7, State: segment.Live, Used: 12, Limit: 10},
			{Name: "c", PID: 7, State: segment.Dead, Used: 1, Limit: 9},
			{Name: "d", PID: 9, State: segment.Live, Used: 1, Limit: 9},
			{Name: "e", State: segment.Foreign, Used: 1, Limit: 9},
		}, nil
	}
	addElastic(&s, list)
	require.Equal(t, []telemetry.Elastic{{Segment: "a", Used: 5, Kept: 2, Limit: 9}, {Segment: "b", Used: 12, Limit: 10}}, s.Processes[0].Elastic)
	require.EqualValues(t, 4, s.Processes[0].Elastic[0].Available())
	require.Zero(t, s.Processes[0].Elastic[1].Available(), "the limit was lowered")
	require.Empty(t, s.Processes[1].Elastic)
	require.Empty(t, s.Processes[2].Elastic)

	addElastic(&s, func(...uint32) ([]segment.Segment, error) { return nil, segment.ErrUnsupported })
	require.Len(t, s.Processes[0].Elastic, 2)
}
