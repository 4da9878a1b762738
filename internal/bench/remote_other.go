//go:build !linux

package main

import "context"

// measureRemote needs a throttled filesystem, which exists for Linux only.
func measureRemote(_ context.Context, r *rig) (any, error) {
	return leftOut(r, "remote", "it needs Linux's FUSE")
}
