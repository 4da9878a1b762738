// Package measure holds repeated measurements, and describes the machine of a measurement.
package measure

import (
	"math"
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

// Quantile is the smallest value that is not less than a share q of all values; 0 without values.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[max(0, int(math.Ceil(q*float64(len(values))))-1)]
}

// InTurns calls all sides once. The side that goes first is another one in the next turn.
func InTurns(turn int, sides ...func() error) error {
	for i := range sides {
		if err := sides[(turn+i)%len(sides)](); err != nil {
			return err
		}
	}
	return nil
}

// SideBySide is two series whose values were measured in pairs.
type SideBySide struct {
	Off   Series `json:"off"`
	On    Series `json:"on"`
	Ratio Series `json:"ratio" unit:"ratio"` // on over off, per pair
}

// Add adds a pair.
func (s *SideBySide) Add(off, on float64) {
	s.Off.Add(off)
	s.On.Add(on)
	s.Ratio.Add(on / off)
}

// Measure measures a pair, in turns.
func (s *SideBySide) Measure(off, on func() (float64, error)) error {
	was, is, err := Pair(len(s.Ratio.Values), off, on)
	if err == nil {
		s.Add(was, is)
	}
	return err
}

// Pair calls both sides of a turn, see [InTurns].
func Pair[T any](turn int, off, on func() (T, error)) (ofOff, ofOn T, err error) {
	err = InTurns(turn,
		func() (err error) { ofOff, err = off(); return err },
		func() (err error) { ofOn, err = on(); return err })
	return ofOff, ofOn, err
}
