package ollamasrc

import (
	"context"
	"os/exec"
	"time"
)

// stopGrace is the time that an interrupted child has to clean up (git removes its lock
// files, ninja its half-written objects).
const stopGrace = 5 * time.Second

// command is exec.CommandContext for children that have children: cancelling
// stops the whole group.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	ownGroup(cmd)
	cmd.Cancel = func() error { return interrupt(cmd) }
	cmd.WaitDelay = stopGrace
	return cmd
}
