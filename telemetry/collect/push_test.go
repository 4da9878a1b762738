package collect

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/telemetry"
)

// Without a change nothing is written, except seldom, to tell that the process does not hang. Prompts
// are written when there are new ones alone.
func TestOnlyChangesAreWritten(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.opt.Intervals.Heartbeat = time.Hour
	p.source.Meter.Prompt(telemetry.Prompt{At: testStart, Tokens: 1, Computed: 1})
	for range 10 {
		require.NoError(t, p.try(false))
	}
	s.fault.Reset()
	require.NoError(t, p.try(false))
	require.Zero(t, s.fault.Count())
	p.source.Meter.Add(promptsTotal, 1)
	require.NoError(t, p.try(false))
	require.Equal(t, 1, s.fault.Count(vfs.OpWrite))
	p.written = p.written.Add(-time.Hour) // the heartbeat
	require.NoError(t, p.try(false))
	require.Equal(t, 2, s.fault.Count(vfs.OpWrite))
	require.NoError(t, p.try(true))
	require.Equal(t, 3, s.fault.Count(vfs.OpWrite), "the last one is written without a change")
	p.source.Meter.Prompt(telemetry.Prompt{At: testStart, Tokens: 1, Computed: 1})
	require.NoError(t, p.try(false))
	require.Equal(t, 5, s.fault.Count(vfs.OpWrite))
}

// A process that runs and has nothing to report is not called silent.
func TestHeartbeatIsHeard(t *testing.T) {
	i := Options{}.withDefaults().Intervals
	require.Less(t, i.Heartbeat+i.Report+i.Backoff, telemetry.SilentAfter)
}

// TestPromptsThatWait for a lock keep no count: what was added to the totals is known.
func TestPromptsThatWait(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.source.Meter.Prompt(telemetry.Prompt{At: testStart, Tokens: 1, Computed: 1})
	busy, err := s.lock(foldName)
	require.NoError(t, err)
	require.ErrorIs(t, p.try(false), vfs.ErrLocked)
	require.NoError(t, busy.Close())
	require.NoError(t, os.Remove(s.path(p.name+ownEnd)))
	s.now = func() time.Time { return time.Now().Add(orphanAge + time.Hour) }
	require.NoError(t, s.fold())
	s.now = time.Now
	p.report()
	require.Equal(t, 1.0, total(s.look(), promptsTotal))
	require.Len(t, s.look().Prompts, 1)
}

// A nudge causes a report before its time, and who asks for one waits for it.
func TestNudge(t *testing.T) {
	root := newRoot(t)
	nudge := make(chan chan<- struct{}, 1)
	source := testSource(1)
	startPush(t, root, source, func(o *Options) {
		o.Nudge, o.Intervals.Heartbeat = nudge, time.Hour
		o.Intervals.Report = time.Hour
	})
	await(t, "the first", func() bool { s, err := Read(t.Context(), root); return err == nil && len(s.Models) == 1 })
	source.Meter.Add(promptsTotal, 1)
	for range 1000 {
		select {
		case nudge <- make(chan struct{}):
		default:
		}
	}
	awaitTotal(t, root, promptsTotal, 1)
	source.Meter.Add(promptsTotal, 6)
	told := make(chan struct{})
	nudge <- told
	<-told
	require.Equal(t, 7.0, total(readState(t, root), promptsTotal))
}

// A disk that is full: the files keep their content, the process goes on, and all is written when
// there is room. Nothing is lost where the totals cannot be written.
func TestFullDisk(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpCreate, vfs.OpWrite, vfs.OpClose, vfs.OpRename} {
		s := newSite(t)
		p, ended := s.process(1), s.process(2)
		p.count(1)
		ended.count(10)
		ended.end()
		s.fault.Add(vfs.Rule{Ops: []vfs.Op{op}, Err: syscall.ENOSPC, Short: 7})
		p.source.Meter.Add(promptsTotal, 1)
		for range 3 {
			require.LessOrEqual(t, p.step(), quick.Backoff)
			require.Error(t, s.fold())
			require.Equal(t, 11.0, total(s.look(), promptsTotal), op)
		}
		s.fault.Reset()
		p.step()
		require.NoError(t, s.fold())
		require.Equal(t, 12.0, total(s.look(), promptsTotal), op)
		p.end()
		require.NoError(t, s.fold())
		require.Equal(t, settled, s.names(), op)
	}
}

// A disk that hangs: a process ends in time, and its file is not added to the totals until the write is
// over, which would put it there once more.
func TestDiskThatHangs(t *testing.T) {
	s := newSite(t)
	gate := vfs.NewGate()
	source := testSource(1)
	p := startPush(t, s.root, source, func(o *Options) {
		o.fs, o.Intervals.Last, o.Intervals.Disk = s.faulty(), time.Millisecond, time.Millisecond
	})
	source.Meter.Add(promptsTotal, 1)
	awaitTotal(t, s.root, promptsTotal, 1)
	s.fault.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRename}, Gate: gate})
	source.Meter.Add(promptsTotal, 1)
	<-gate.Entered()
	p.stop() // in time
	other, err := newPlace(s.root, Options{}.withDefaults())
	require.NoError(t, err)
	f := folder{place: other, log: s.folder.log}
	require.NoError(t, f.fold(false))
	require.Len(t, s.look().Processes, 1)
	require.Equal(t, 1.0, total(s.look(), promptsTotal))
	gate.Open()
	await(t, "the end of the write", func() bool {
		require.NoError(t, f.fold(false))
		return len(s.names()) == len(settled)
	})
	require.Equal(t, 2.0, total(s.look(), promptsTotal))
}

// A source that hangs does not hold up the end.
func TestHangingAtTheEnd(t *testing.T) {
	release, asked := make(chan struct{}), make(chan struct{}, 8)
	source := testSource(1)
	source.Fill = func(*telemetry.Report) { asked <- struct{}{}; <-release }
	p := startPush(t, newRoot(t), source, func(o *Options) {
		o.Intervals.Last, o.Intervals.Disk = time.Millisecond, time.Millisecond
	})
	<-asked
	p.stop()
	close(release)
}

// Too large a report loses its parts, and is read.
func TestLargeReportsAreCut(t *testing.T) {
	s := newSite(t)
	p := s.process(1)
	p.source.Fill = func(r *telemetry.Report) {
		for i := range 4 * telemetry.SlotsMax {
			r.Slots = append(r.Slots, telemetry.Slot{ID: i})
			r.Prompts = append(r.Prompts, telemetry.Prompt{Seq: uint64(1000 + i)})
			r.Tiers = append(r.Tiers, telemetry.Tier{Name: telemetry.PlaceLocal, Root: fmt.Sprint(i)})
			r.Memory = append(r.Memory, telemetry.Memory{})
			r.Busters = append(r.Busters, telemetry.Buster{})
		}
	}
	p.count(1)
	state := s.look()
	require.Len(t, state.Processes[0].Slots, telemetry.SlotsMax)
	require.Len(t, state.Processes[0].Busters, telemetry.BustersMax)
	require.Len(t, state.Prompts, telemetry.PromptsMax)
	p.source.Fill = func(r *telemetry.Report) {
		for i := range 20_000 {
			r.Gauges[fmt.Sprint(i)+strings.Repeat("x", 100)] = 1
		}
	}
	p.count(1)
	state = s.look()
	require.Empty(t, state.Processes[0].Gauges)
	require.Equal(t, 2.0, total(state, promptsTotal))
}

// Sums stay numbers that JSON can write.
func TestSumsStayFinite(t *testing.T) {
	totals := &totals{}
	for range 3 {
		totals.add(&report{Report: telemetry.Report{Totals: map[string]float64{promptsTotal: sumMax}}})
	}
	require.False(t, math.IsInf(totals.Models[0].Totals[promptsTotal], 0))
}

// FuzzReport: bytes are refused, or lead to totals that can be written and read again.
func FuzzReport(f *testing.F) {
	r := report{Report: wordsSource(1, "n", 7).Report()}
	r.Tiers = []telemetry.Tier{{Name: telemetry.PlaceLocal, Root: "/a"}}
	text, err := encode(r)
	require.NoError(f, err)
	f.Add(text)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeReport(data)
		if err != nil {
			require.True(t, errors.Is(err, errContent) || errors.Is(err, errVersion), err)
			return
		}
		totals := &totals{Version: fileVersion}
		totals.add(r)
		text, err := encode(totals)
		require.NoError(t, err)
		_, err = decodeTotals(text)
		require.NoError(t, err)
		l := &look{totals: totals, entries: []entry{{name: "p", report: r, runs: true, prompts: r}}}
		text, err = encode(l.state("/", time.Now()).WithWords(nil))
		require.NoError(t, err)
		require.NotContains(t, string(text), `"words":{`)
	})
}

// FuzzTotals: a file is refused, or its content comes back.
func FuzzTotals(f *testing.F) {
	f.Add([]byte(`{"version":2,"folded":["p"],"models":[{"engine":"ollama","totals":{"x":1}}],"tiers":[{"name":"local"}],"names":{"a":"b"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		totals, err := decodeTotals(data)
		if err != nil {
			require.ErrorIs(t, err, errContent)
			return
		}
		text, err := encode(totals)
		require.NoError(t, err)
		again, err := decodeTotals(text)
		require.NoError(t, err)
		second, err := encode(again)
		require.NoError(t, err)
		require.Equal(t, string(text), string(second))
	})
}
