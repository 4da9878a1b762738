package tierenv

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

// Trouble returns the function for [diskstore.Options.Trouble] that tells a Watch.
func Trouble(w *unstored.Watch) func(error) {
	return func(err error) {
		switch {
		case err == nil:
			w.Stored()
		case errors.Is(err, tier.ErrClosed):
		case errors.Is(err, ledger.ErrNotCounted): // soon, unless the disk is slow
			w.Doubt(telemetry.ObstacleSlow, err)
		default:
			w.Lost(ObstacleOf(err), err)
		}
	}
}

// obstacles are causes by error, the first one that fits being the cause.
var obstacles = []struct {
	err   error
	cause telemetry.Obstacle
}{
	{tier.ErrRootSymlink, telemetry.ObstacleRoot},
	{tier.ErrRootNotDir, telemetry.ObstacleRoot},
	{tier.ErrRootOwner, telemetry.ObstacleRoot},
	{tier.ErrRootMode, telemetry.ObstacleRoot},
	{tier.ErrRootMissing, telemetry.ObstacleRoot},
	{diskstore.ErrNoInodes, telemetry.ObstacleInodes},
	{diskstore.ErrCrowded, telemetry.ObstacleFull},
	{ledger.ErrWriteCap, telemetry.ObstacleWriteCap},
	{syscall.ENAMETOOLONG, telemetry.ObstacleName},
	{steady.ErrHung, telemetry.ObstacleHung},
	{syscall.ENOTDIR, telemetry.ObstacleRoot},
	{fs.ErrPermission, telemetry.ObstacleDenied},
}

// ObstacleOf is the cause of an error of the page store, its directory or the settings.
func ObstacleOf(err error) telemetry.Obstacle {
	switch {
	case vfs.IsNoSpace(err):
		return telemetry.ObstacleFull
	case vfs.IsReadOnly(err):
		return telemetry.ObstacleReadOnly
	}
	for _, o := range obstacles {
		if errors.Is(err, o.err) {
			return o.cause
		}
	}
	if errors.Is(err, tier.ErrNoSpace) {
		return telemetry.ObstacleBudget // the disk would have room
	}
	return telemetry.ObstacleOther
}
