// Package top is the view of kvtier top: tiers, rates, slots and the latest prompts of one or
// several servers, in a terminal.
//
// A program of bubbletea owns the terminal. Its [model] asks every server once a second, in a
// goroutine of its own and with a deadline, so a server that hangs or restarts delays neither
// keys nor the others. [frame] turns a model into text and does nothing else; tests compare its
// output with files.
//
// Names of models, directories and details come from other people. [clean] takes control
// characters out of them, and every line is cut to the width of the terminal in cells.
package top
