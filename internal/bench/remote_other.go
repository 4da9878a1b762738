//go:build !linux

package main

import "context"

// measureRemote needs a filesystem that is as slow as it is told to be.
func (b *bench) measureRemote(context.Context) error {
	b.steps.Step("remote").End("left out: it needs Linux's FUSE", nil)
	return nil
}
