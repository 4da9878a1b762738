//go:build !linux && !darwin

package machine

// noFollow is not known on this system.
const noFollow = 0
