// Package progress shows the progress of a program, one line for each step. On a terminal
// the lines of running steps are redrawn; elsewhere a step prints one line when it ends,
// without control characters.
package progress
