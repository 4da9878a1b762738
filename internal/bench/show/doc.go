// Package show is how the demo and the benchmarks talk to people: numbers with the
// digits that matter, and steps that are alive on a terminal and plain lines
// elsewhere.
package show
