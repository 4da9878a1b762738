package collect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

// fakeCollector answers in the place of a collector. Its handler gets the reports.
func fakeCollector(t *testing.T, root string, handle http.HandlerFunc) *http.Server {
	if err := os.Mkdir(filepath.Join(root, directoryName), 0o700); err != nil {
		require.ErrorIs(t, err, os.ErrExist)
	}
	l, err := listen(filepath.Join(root, directoryName))
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	server := &http.Server{Handler: handle}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return server
}

// received are the reports that a fake collector got.
type received struct {
	report telemetry.Report
	last   bool
}

// accepting accepts all reports, and passes them on.
func accepting(t *testing.T, root string) chan received {
	reports := make(chan received, 1000)
	fakeCollector(t, root, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		var report telemetry.Report
		if json.Unmarshal(data, &report) == nil {
			reports <- received{report, r.URL.Query().Get("last") == "1"}
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return reports
}

// Without a collector, no report is made.
func TestNoCollectorCostsNoReport(t *testing.T) {
	var made atomic.Int32
	source := testSource(1)
	source.Fill = func(*telemetry.Report) { made.Add(1) }
	root := newRoot(t)
	ctx, end := context.WithCancel(context.Background())
	p := newPusher(root, source, Options{Intervals: quick}.withDefaults())
	for range 20 {
		wait := p.step(ctx)
		require.LessOrEqual(t, wait, quick.Backoff)
	}
	end()
	p.run(ctx)
	require.Zero(t, made.Load())
}

// The last report is sent at the end, and no attempt follows.
func TestLastReport(t *testing.T) {
	root := newRoot(t)
	reports := accepting(t, root)
	source := testSource(1)
	p := startPush(t, root, source)
	require.False(t, (<-reports).last)
	source.Meter.Add(promptsTotal, 7)
	p.stop()
	close(reports)
	all := []received{}
	for r := range reports {
		all = append(all, r)
	}
	require.True(t, all[len(all)-1].last)
	require.Equal(t, 7.0, all[len(all)-1].report.Totals[promptsTotal])
	require.False(t, slices.ContainsFunc(all[:len(all)-1], func(r received) bool { return r.last }))
}

// Reports without a change are sent seldom, those with one soon.
func TestOnlyChangesAreReported(t *testing.T) {
	root := newRoot(t)
	reports := accepting(t, root)
	source := testSource(1)
	p := newPusher(root, source, Options{Intervals: Intervals{Heartbeat: time.Hour, Try: time.Minute}}.withDefaults())
	defer p.close()
	for range 10 {
		require.NoError(t, p.try(t.Context(), false))
	}
	require.Len(t, reports, 1)
	source.Meter.Add(promptsTotal, 1)
	require.NoError(t, p.try(t.Context(), false))
	require.Len(t, reports, 2)
	p.accepted = p.accepted.Add(-time.Hour) // the heartbeat
	require.NoError(t, p.try(t.Context(), false))
	require.Len(t, reports, 3)
	require.NoError(t, p.try(t.Context(), true))
	require.Len(t, reports, 4, "the last one is sent without a change")
}

// A nudge causes a report before its time, and a thousand cause few.
func TestNudge(t *testing.T) {
	root := newRoot(t)
	reports := accepting(t, root)
	nudge := make(chan chan<- struct{}, 1)
	source := testSource(1)
	startPush(t, root, source, func(o *Options) {
		o.Nudge, o.Intervals.Heartbeat = nudge, time.Hour
		o.Intervals.Report = 10 * time.Second // a nudge is heard after a tenth
	})
	<-reports
	source.Meter.Add(promptsTotal, 1)
	for range 1000 {
		select {
		case nudge <- nil:
		default:
		}
	}
	require.Equal(t, 1.0, (<-reports).report.Totals[promptsTotal])
	require.LessOrEqual(t, len(reports), 1)
}

// Who asks for a report waits for it, and not where nobody listens.
func TestReportThatIsAskedFor(t *testing.T) {
	root := newRoot(t)
	nudge := make(chan chan<- struct{}, 1)
	source := testSource(1)
	startPush(t, root, source, func(o *Options) {
		o.Nudge, o.Intervals.Heartbeat, o.Intervals.Report = nudge, time.Hour, time.Hour
		o.Intervals.Backoff, o.Intervals.Last = 10*time.Millisecond, time.Millisecond // the collector ends first
	})
	for range 3 {
		unheard := make(chan struct{})
		nudge <- nil
		nudge <- unheard
		<-unheard
	}
	reports := accepting(t, root)
	<-reports
	source.Meter.Add(promptsTotal, 7)
	told := make(chan struct{})
	nudge <- told
	<-told
	require.Equal(t, 7.0, (<-reports).report.Totals[promptsTotal])
}

// A collector that refuses, hangs or breaks off is tried again, and the next one gets all.
func TestCollectorsThatFail(t *testing.T) {
	root := newRoot(t)
	source := testSource(1)
	source.Meter.Add(promptsTotal, 3)
	var tries atomic.Int32
	hanging := make(chan struct{})
	bad := fakeCollector(t, root, func(w http.ResponseWriter, r *http.Request) {
		switch tries.Add(1) % 4 {
		case 0:
			http.Error(w, strings.Repeat("no", 1<<20), http.StatusServiceUnavailable)
		case 1:
			panic(http.ErrAbortHandler)
		case 2:
			select {
			case <-hanging:
			case <-r.Context().Done():
			}
		case 3:
			w.WriteHeader(http.StatusOK)
		}
	})
	startPush(t, root, source, func(o *Options) { o.Intervals.Try = 20 * time.Millisecond })
	await(t, "attempts", func() bool { return tries.Load() > 10 })
	close(hanging)
	bad.Close()
	require.NoError(t, os.Remove(newPath(root, socketName)))
	reports := accepting(t, root)
	require.Equal(t, 3.0, (<-reports).report.Totals[promptsTotal])
}

// A collector that accepts and never answers does not hold up the end, and neither does a
// source that hangs.
func TestHangingAtTheEnd(t *testing.T) {
	root := newRoot(t)
	require.NoError(t, os.Mkdir(filepath.Join(root, directoryName), 0o700))
	l, err := listen(filepath.Join(root, directoryName))
	require.NoError(t, err)
	defer l.Close()
	accepted := make(chan net.Conn, 100)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	hung := Intervals{Report: time.Millisecond, Try: time.Millisecond, Last: time.Millisecond}
	release := make(chan struct{})
	for _, fill := range []func(*telemetry.Report){nil, func(*telemetry.Report) { <-release }} {
		source := testSource(1)
		source.Fill = fill
		p := startPush(t, root, source, func(o *Options) { o.Intervals = hung })
		conn := <-accepted
		p.stop()
		conn.Close()
	}
	close(release)
	l.Close()
	for len(accepted) > 0 {
		(<-accepted).Close()
	}
}

// A new collector gets a report soon, although nothing has changed since the last.
func TestANewCollectorIsTold(t *testing.T) {
	root := newRoot(t)
	first := collector(t, root)
	startPush(t, root, testSource(1), func(o *Options) {
		o.Intervals.Heartbeat, o.Intervals.Last = time.Hour, time.Millisecond // in the end nobody collects
	})
	running := func() bool { return len(readState(t, root).Processes) == 1 }
	await(t, "a report", running)
	require.NoError(t, first.stop())
	collector(t, root)
	await(t, "a report to the second", running)
}

// Too large a report loses its parts, and is accepted.
func TestLargeReportsAreCut(t *testing.T) {
	r := largest(1)
	for i := range 4 * telemetry.SlotsMax {
		r.Slots = append(r.Slots, telemetry.Slot{ID: i})
		r.Prompts = append(r.Prompts, telemetry.Prompt{Seq: uint64(1000 + i)})
		r.Tiers = append(r.Tiers, telemetry.Tier{Name: telemetry.PlaceRAM})
		r.Memory = append(r.Memory, telemetry.Memory{})
		r.Busters = append(r.Busters, telemetry.Buster{})
	}
	data, err := fit(r)
	require.NoError(t, err)
	got, err := decodeReport(data)
	require.NoError(t, err)
	require.Len(t, got.Totals, telemetry.SeriesMax)

	r = largest(1)
	for i := range 20_000 {
		r.Gauges[fmt.Sprint(i)+strings.Repeat("x", 100)] = 1
	}
	data, err = fit(r)
	require.NoError(t, err)
	got, err = decodeReport(data)
	require.NoError(t, err)
	require.Empty(t, got.Gauges)
	require.Len(t, got.Totals, telemetry.SeriesMax)

	r.Model.Namespace = "\xff"
	data, err = fit(r)
	require.NoError(t, err)
	require.NotContains(t, string(data), `"words"`)

	for i := range 20_000 {
		r.Totals[fmt.Sprint(i)+strings.Repeat("x", 100)] = 1
	}
	_, err = fit(r)
	require.Error(t, err)
}
