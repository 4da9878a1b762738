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
		quick bool
	}{"quick": {nil, true}, "failing": {errors.New("no such page"), false}} {
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
			require.ElementsMatch(t, []int{4, 5, 6}, numbers)
			require.Equal(t, 10.0, s.totals()[`ollama_kv_gate_pages_total{decision="compute"}`])
			require.Equal(t, probe.quick, s.Pays(pages(9)) == 9)
		})
	}
}
