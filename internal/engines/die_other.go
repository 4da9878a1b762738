//go:build !linux

package engines

import "os/exec"

func dieWithTest(*exec.Cmd) {}
