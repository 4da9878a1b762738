package tiering

import (
	"fmt"
	"os"
)

// server names the server that started this runner, so that its runners find each other:
// no other process on this machine has had its process id and been started when it was.
func server() string {
	pid := os.Getppid()
	return fmt.Sprintf("%d %s", pid, startOf(pid))
}
