//go:build !race

package testrows

// RaceDetector reports that the tests run with the race detector.
const RaceDetector = false
