// Package show is how the demo and the benchmarks talk to people: numbers with the
// digits that matter, and how a command ends.
package show

// StepNames is the width of the column that holds the names of steps.
const StepNames = 42
