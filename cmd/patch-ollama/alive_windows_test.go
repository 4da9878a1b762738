package main

// alive is not called on Windows; see TestBuildInterrupt.
func alive(int) bool { return false }
