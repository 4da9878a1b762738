package engine

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scene is a gate before a tier whose pages take no time.
type scene struct {
	Gate
	late  chan time.Time // gives a page up
	reads Background
}

func newScene() *scene {
	s := &scene{late: make(chan time.Time, 1)}
	s.Gate = Gate{
		Rates: rates.New(), Meter: new(telemetry.Meter), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Spawn: s.reads.Spawn, After: func(time.Duration) <-chan time.Time { return s.late },
	}
	s.Rates.Computed(100, 0, 100*time.Hour)
	return s
}

// pages are a chain in a tier of 10 tokens each.
func pages(n int) (c rates.Chain) {
	for i := range n {
		c.Pages = append(c.Pages, rates.Page{Start: 10 * i, Tokens: 10, Bytes: 1, Tier: "local"})
	}
	return c
}

func (s *scene) totals() map[string]float64 {
	totals, _ := s.Meter.Read()
	return totals
}

// TestPagesComeInOrder, and each is counted once.
func TestPagesComeInOrder(t *testing.T) {
	s := newScene()
	r := Read(t.Context(), &s.Gate, pages(20), false, func(_ context.Context, i int) int { return i }, func(int) { t.Error("dropped") })
	next := 0
	for i, page := range r.Pages() {
		require.Equal(t, []int{next, next}, []int{i, page})
		next++
	}
	r.Close()
	require.Equal(t, 20, next)
	require.False(t, r.GivenUp())
	require.Equal(t, 20.0, s.totals()[`ollama_kv_gate_pages_total{decision="read"}`])
	require.Equal(t, 20.0, s.totals()[`ollama_kv_page_faults_total{tier="local"}`])
}

// TestAPageThatDoesNotCome is given up, and dropped when it comes at last.
func TestAPageThatDoesNotCome(t *testing.T) {
	s := newScene()
	var dropped []int
	r := Read(t.Context(), &s.Gate, pages(5), true, func(ctx context.Context, i int) int {
		if i == 2 {
			s.late <- time.Time{}
			<-ctx.Done()
		}
		return i
	}, func(i int) { dropped = append(dropped, i) })
	used := 0
	for range r.Pages() {
		used++
	}
	r.Close()
	require.Equal(t, 2, used)
	require.Equal(t, []int{2}, dropped)
	require.True(t, r.GivenUp())
	require.Equal(t, 1.0, s.totals()["ollama_kv_restores_given_up_total"])
}

// TestAtAnyCost each page is waited for.
func TestAtAnyCost(t *testing.T) {
	s := newScene()
	s.Always = true
	r := Read(t.Context(), &s.Gate, pages(3), false, func(_ context.Context, i int) int { return i }, nil)
	require.Nil(t, r.deadline())
	used := 0
	for range r.Pages() {
		used++
	}
	r.Close()
	require.Equal(t, 3, used)
}

// TestAllDamagedPagesAreRead, although the first ends the restore; not for ever.
func TestAllDamagedPagesAreRead(t *testing.T) {
	for hangs, want := range map[int]int{-1: 9, 5: 5} {
		s := newScene()
		var dropped []int
		r := Read(t.Context(), &s.Gate, pages(10), false, func(ctx context.Context, i int) int {
			if i == hangs {
				<-ctx.Done()
			}
			return i
		}, func(i int) {
			if dropped = append(dropped, i); i+1 == hangs {
				s.late <- time.Time{}
			}
		})
		for range r.Pages() {
			break
		}
		r.Examine()
		r.Close()
		require.GreaterOrEqual(t, len(dropped), want)
		require.False(t, r.GivenUp())
	}
}

// TestARequestThatEnds hands over nothing more.
func TestARequestThatEnds(t *testing.T) {
	s := newScene()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := Read(ctx, &s.Gate, pages(10), true, func(_ context.Context, i int) int { return i }, func(int) {})
	used := 0
	for range r.Pages() {
		used++
		cancel()
	}
	r.Close()
	require.LessOrEqual(t, used, 2)
	require.False(t, r.GivenUp())
}

// TestSkippedPagesAreProbed behind the request, some of them, and not each time.
func TestSkippedPagesAreProbed(t *testing.T) {
	for name, probe := range map[string]struct {
		err   error
		read  []int
		quick bool
	}{"quick": {nil, []int{4, 5, 6}, true}, "failing": {errors.New("no such page"), []int{4}, false}} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.Rates.Watch(pages(1), 1).GaveUp(100 * time.Hour)
			require.Zero(t, s.Pays(pages(9)))
			read := make(chan int, 10)
			for range 2 {
				s.Skip(t.Context(), pages(9), 4, func(_ context.Context, i int) error {
					read <- i
					return probe.err
				})
			}
			s.reads.Wait()
			close(read)
			var numbers []int
			for i := range read {
				numbers = append(numbers, i)
			}
			require.ElementsMatch(t, probe.read, numbers)
			require.Equal(t, 4, numbers[0], "alone")
			require.Equal(t, 10.0, s.totals()[`ollama_kv_gate_pages_total{decision="compute"}`])
			require.Equal(t, probe.quick, s.Pays(pages(9)) == 9)
		})
	}
}

// slowPages find one page before their caller's time is over.
type slowPages struct{ Pages }

func (slowPages) Find(ctx context.Context, p diskstore.Prompt) diskstore.Found {
	<-ctx.Done()
	return diskstore.Found{Exact: []diskstore.Ref{{Key: pagefile.Key{1}}}}
}

// TestWhatASlowDiskFinds is of use, and the disk does not count as one that hangs.
func TestWhatASlowDiskFinds(t *testing.T) {
	d := Disk[Pages]{Store: slowPages{}, Patience: Patience{Look: time.Millisecond, Find: time.Hour, Grace: time.Hour}}
	found, err := d.Find(t.Context(), diskstore.Prompt{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Len(t, found.Exact, 1)
	require.False(t, d.Hangs())
}

// Has knows each page: one look is no search.
func (slowPages) Has(pagefile.Key) bool { return true }

// TestARequestWaitsOnceForASlowDisk, however often it looks. A save, which asks for single pages, still
// learns that they are stored.
func TestARequestWaitsOnceForASlowDisk(t *testing.T) {
	d := Disk[Pages]{Store: slowPages{}, Patience: Patience{Look: time.Millisecond, Find: time.Hour, Grace: time.Hour}}
	d.slow.Store(time.Now().Add(time.Hour).UnixNano())
	_, err := d.Find(t.Context(), diskstore.Prompt{})
	require.ErrorIs(t, err, steady.ErrHung)
	has, err := d.Has(t.Context(), pagefile.Key{})
	require.NoError(t, err)
	require.True(t, has)
}

func TestOrigins(t *testing.T) {
	from := func(end int, place string) origin { return origin{end: end, place: place} }
	o := Origins(nil).add(from(0, "slot")).add(from(3, "slot")).add(from(5, "local")).add(from(4, "ram")).add(from(8, "local"))
	require.Equal(t, Origins{from(3, "slot"), from(8, "local")}, o)
	require.Equal(t, Origins{from(3, "slot"), from(5, "local")}, o.Cut(5))
	require.Equal(t, Origins{from(3, "slot")}, o.Cut(3))
	require.Empty(t, o.Cut(0))
	require.Equal(t, o, o.Cut(99))
	cut := o.Cut(5)
	cut.add(from(9, "local"))
	require.Equal(t, Origins{from(3, "slot"), from(8, "local")}, o, "a cut shares nothing with its whole")
	near := o.add(origin{10, "local", true}).add(origin{12, "ram", true}).add(from(13, "slot"))
	require.Equal(t, 4, near.Lossy())
	require.Equal(t, 3, near.Cut(11).Lossy())
	require.Zero(t, near.Cut(8).Lossy())
	require.Zero(t, Origins(nil).Cut(4).End())
	near = o.AddPages([]diskstore.Ref{
		{Start: 4, Tokens: 6, Tier: "local"}, {Start: 10, Tokens: 6, Tier: "ram", Lossy: true}, {Start: 16, Tokens: 4, Tier: "remote"},
	}, 18)
	require.Equal(t, Origins{from(3, "slot"), from(10, "local"), {16, "ram", true}, {18, "remote", true}}, near)
	p := telemetry.Prompt{Tokens: 20}
	require.True(t, near.CountIn(&p))
	require.Equal(t, telemetry.Prompt{Tokens: 20, Slot: 3, Local: 7, RAM: 6, Remote: 2, Lossy: 8, Computed: 2}, p)
}

// A job that panics ends neither the process nor the jobs behind it.
func TestAJobThatPanics(t *testing.T) {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	defer slog.SetDefault(before)
	var q Queue
	q.Wait(0) // nothing has run
	ran := 0
	for i := range 4 {
		require.True(t, q.Submit(func() {
			if i%2 == 0 {
				panic(i)
			}
			ran++
		}))
	}
	q.Wait(time.Minute)
	require.Equal(t, 2, ran)
}

// Jobs that wait are bounded in number; they run in order.
func TestJobsAreBounded(t *testing.T) {
	var q Queue
	began, end := make(chan struct{}), make(chan struct{})
	require.True(t, q.Submit(func() { close(began); <-end }))
	<-began
	var order []int
	for i := range JobsMax {
		require.True(t, q.Submit(func() { order = append(order, i) }))
	}
	require.False(t, q.Submit(func() { t.Error("one too many") }))
	close(end)
	q.Wait(time.Minute)
	require.Len(t, order, JobsMax)
	require.IsIncreasing(t, order)
}
