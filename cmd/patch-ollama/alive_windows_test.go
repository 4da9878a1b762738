package main

// alive is not asked on Windows; see TestBuildInterrupt.
func alive(int) bool { return false }
