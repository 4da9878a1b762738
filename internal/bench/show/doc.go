// Package show is how the demo and the benchmarks talk to people: tables in the
// style of "ollama ps" and steps that are alive on a terminal and plain lines
// elsewhere.
package show
