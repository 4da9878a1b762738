package tiering

import (
	"fmt"
	"os"
)

// server names the server that started this runner, so that a server's runners find each
// other. The name is the server's process id and start, which no other process of this
// machine shares.
func server() string {
	pid := os.Getppid()
	return fmt.Sprintf("%d %s", pid, startOf(pid))
}
