//go:build !race

package pagefile

// raceDetector reports that the tests run with the race detector.
const raceDetector = false
