package diskstore

import (
	"time"
)

const (
	// A tier is counted again when its last count is older than countEvery and than countPause
	// times the duration of that count: a server with a million files must not spend its time
	// counting them.
	countEvery = time.Minute
	countPause = 100

	// countAgain replaces countEvery where claims are impossible without a count.
	countAgain = time.Second
)
