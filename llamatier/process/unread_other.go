//go:build unix && !linux

package process

import (
	"context"
	"os"
)

// waitUnread is known on Linux only: elsewhere poll does not report the end of a pipe that is
// written to.
func waitUnread(context.Context, *os.File) bool { return false }
