// Package memory reports the available memory, for defaults that depend on it. Only Linux
// reports a number.
package memory
