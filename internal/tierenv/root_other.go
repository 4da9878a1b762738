//go:build !linux && !darwin && !windows

package tierenv

// isNetwork returns false: the question differs between systems.
func isNetwork(string) (bool, error) { return false, nil }
