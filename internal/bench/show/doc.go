// Package show prints the results of the demo and the benchmarks for people: numbers
// with the digits that matter, and the end of a command.
package show

// StepNames is the width of the column that holds the names of steps.
const StepNames = 42
