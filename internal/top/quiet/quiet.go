// Package quiet keeps bubbletea from asking the terminal for its colors before main.
//
// bubbletea v1 does so in an init function, in every program that is linked with it. The
// question takes a round trip, swallows keys that were typed ahead, and takes five seconds on a
// terminal that does not answer; all verbs of kvtier would ask it, and top has no use for the
// answer. The library behind bubbletea does not ask while the variable CI is set.
//
// Go initializes packages in the order of their paths, as soon as all imports of a package are
// done. This package imports os alone. bubbletea imports os/signal, whose path sorts after this
// one's and which imports os, so bubbletea comes later. A test of package top watches a terminal.
package quiet

import "os"

const variable = "CI"

var _, isSet = os.LookupEnv(variable)

func init() {
	if !isSet {
		_ = os.Setenv(variable, "1") // fails for names that are no names
	}
}

// Restore sets the variable back. Call it from the init function of a package that
// imports bubbletea.
func Restore() {
	if !isSet {
		_ = os.Unsetenv(variable)
	}
}
