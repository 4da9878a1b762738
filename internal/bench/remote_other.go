//go:build !linux

package main

import "context"

// measureRemote needs a throttled filesystem, which exists for Linux only.
func (b *bench) measureRemote(context.Context) error {
	b.steps.Step("remote").End("left out: it needs Linux's FUSE", nil)
	return nil
}
