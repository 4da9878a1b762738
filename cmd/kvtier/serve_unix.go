//go:build unix

package main

import "github.com/kvtier/kvtier/llamatier/front"

// stands stands in the place of llama-server, if this program was started by that name, and reports so.
func stands(as string) bool {
	if !front.Called(as) {
		return false
	}
	front.Main()
	return true
}

// become runs this program in the place of a llama-server. It returns only an error.
func become(real string, args []string) error { return front.Become(real, args) }
