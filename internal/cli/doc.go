// Package cli is how the commands of this repository take a command line: what they say of
// one that is wrong, and the status with which they exit.
package cli
