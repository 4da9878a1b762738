package measure

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
	var pair [2]float64
	side := func(i int, measure func() (float64, error)) func() error {
		return func() (err error) { pair[i], err = measure(); return err }
	}
	err := InTurns(len(s.Ratio.Values), side(0, off), side(1, on))
	if err == nil {
		s.Add(pair[0], pair[1])
	}
	return err
}
