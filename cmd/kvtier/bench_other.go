//go:build !linux

package main

// dropFile returns false: only Linux can drop a file from the page cache.
func dropFile(string) (bool, error) { return false, nil }
