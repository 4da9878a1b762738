package lab

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Restored is the runner's log line about restoring a prompt's K/V, zero when
// nothing was restored.
type Restored struct {
	Tokens  int           // restored into the slot
	Shifted int           // the part of Tokens from another position
	Took    time.Duration // from the lookup to the last row
}

// restoredLine is: msg="kv tier: restored" slot=0 tokens=7936 shifted=0 prompt=8003
// bytes="65 MB" from=local took=43ms
var restoredLine = regexp.MustCompile(
	`msg="kv tier: restored" slot=\d+ tokens=(\d+) shifted=(\d+) prompt=\d+ bytes="?[^"=]*"? from=\S+ took=(\S+)`)

// parseRestored reads the line in the log of one request.
func parseRestored(log string) (Restored, error) {
	match := restoredLine.FindStringSubmatch(log)
	if match == nil {
		return Restored{}, nil
	}
	tokens, tokensErr := strconv.Atoi(match[1])
	shifted, shiftedErr := strconv.Atoi(match[2])
	took, tookErr := time.ParseDuration(match[3])
	if tokensErr != nil || shiftedErr != nil || tookErr != nil {
		return Restored{}, fmt.Errorf("reading the runner's log: %q has a number that is none", match[0])
	}
	return Restored{Tokens: tokens, Shifted: shifted, Took: took}, nil
}
