//go:build !linux && !darwin && !windows

package tierenv

// isNetwork says no: how to ask differs between systems.
func isNetwork(string) (bool, error) { return false, nil }
