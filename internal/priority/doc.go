// Package priority lets work that somebody waits for stand behind work that more people
// wait for.
package priority
