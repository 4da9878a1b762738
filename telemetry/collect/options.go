package collect

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/telemetry"
)

// Options of Serve and Push. The zero Options are ready for use.
type Options struct {
	Logger *slog.Logger // nil for none

	// OnServe is called each time that this process begins to collect.
	OnServe func()
	// ModelName returns the name of a model whose processes do not know it, or "". ModelName
	// must return at once, and may be called from several goroutines.
	ModelName func(weights string) string

	// Nudge asks Push for a report at once. Give it room for one value, and send without waiting. A
	// value that is not nil is closed when the report is written, or when it is not; wait for it with a
	// bound.
	Nudge <-chan chan<- struct{}

	// Stay has Serve try again where a person has to do something.
	Stay bool

	Intervals Intervals

	fs  func(dir string) vfs.FS // nil for vfs.Below
	now func() time.Time
}

// Intervals are times that tests make shorter. A zero one has its default.
type Intervals struct {
	Report    time.Duration // between reports while something changes: 1 s
	Heartbeat time.Duration // between reports while nothing does: 30 s
	Last      time.Duration // most time of the last report: 500 ms
	Backoff   time.Duration // longest time between attempts that fail: 4 s
	Poll      time.Duration // between attempts at the lock, and looks at the processes: 500 ms
	Disk      time.Duration // most time for which a disk that hangs holds up an end: 1 s
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.fs == nil {
		o.fs = vfs.Below
	}
	if o.now == nil {
		o.now = time.Now
	}
	i := &o.Intervals
	i.Report = cmp.Or(i.Report, time.Second)
	i.Heartbeat = cmp.Or(i.Heartbeat, 2*telemetry.SilentAfter/3)
	i.Last = cmp.Or(i.Last, 500*time.Millisecond)
	i.Backoff = cmp.Or(i.Backoff, 4*time.Second)
	i.Poll = cmp.Or(i.Poll, 500*time.Millisecond)
	i.Disk = cmp.Or(i.Disk, time.Second)
	return o
}
