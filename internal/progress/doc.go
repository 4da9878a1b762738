// Package progress shows people how far a program is: one line for each step. On a
// terminal the lines of steps that run are redrawn; elsewhere a step is one line once it
// has ended, with no control characters.
package progress
