package main

import "github.com/kvtier/kvtier/internal/progress"

// barNames is the width of the column that holds the names of bars.
const barNames = 15

// newBars returns a display for the bytes of a long verb, nil without a terminal.
func (a *app) newBars() *progress.Display {
	if a.asJSON || !a.terminal {
		return nil
	}
	return progress.NewTransient(a.screen, barNames)
}
