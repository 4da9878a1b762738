//go:build unix && !linux

package main

// processID is known on Linux only: elsewhere it is empty.
func processID(int) string { return "" }

func processAlive(string) (alive, known bool) { return false, false }
