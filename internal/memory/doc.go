// Package memory says how much memory there is to take, for defaults that depend on it.
// Only on Linux it can tell.
package memory
