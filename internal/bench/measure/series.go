package measure

import (
	"slices"
	"time"
)

// Series is repeated measurements of one quantity, in order.
type Series struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Values []float64 `json:"values"`
}

// Add adds a measurement.
func (s *Series) Add(value float64) {
	s.Values = append(s.Values, value)
	s.Median, s.Min, s.Max = Median(s.Values), slices.Min(s.Values), slices.Max(s.Values)
}

// AddSeconds adds a duration in seconds.
func (s *Series) AddSeconds(d time.Duration) { s.Add(d.Seconds()) }

// Most calls read now and then until the caller calls stop, which returns the most that it returned.
func Most(every time.Duration, read func() int64) (stop func() int64) {
	end, most := make(chan struct{}), make(chan int64)
	go func() {
		found, ticks := read(), time.NewTicker(every)
		defer ticks.Stop()
		for {
			select {
			case <-ticks.C:
				found = max(found, read())
			case <-end:
				most <- found
				return
			}
		}
	}()
	return func() int64 {
		close(end)
		return <-most
	}
}

// Median is the middle value, or the mean of the two middle values; 0 without values.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
