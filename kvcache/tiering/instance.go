package tiering

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/proc"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// instanceLock is the file in a server's own directory that the server locks while it lives.
const instanceLock = "server.lock"

// ClaimInstance decides the local directory, and locks that of a server with an OLLAMA_KV_INSTANCE_ID.
// The server calls ClaimInstance once before it starts a runner, and release when it ends: release waits
// for removals as [Forget] does. The lock also ends with the process; runners use the directory without
// it. Until release, with an id or without, the server collects its runners' reports.
//
// An error means that another server holds the directory: then this server must not start, since both
// would use the directory as their own. When the directory cannot be used for another reason, tiering
// is turned off for the whole server, and a log line gives the reason.
func ClaimInstance() (release func(), err error) {
	if !Enabled() {
		return func() {}, nil
	}
	lock, err := claimInstance()
	if errors.Is(err, vfs.ErrLocked) {
		return nil, err
	}
	if err != nil {
		slog.Warn("kv tier: off for this server", "reason", err)
		// runners read the variable: without the lock none of them may use the directory
		return func() {}, os.Setenv("OLLAMA_KV_TIERING", "0")
	}
	forgotten.recall()
	stop := serveTelemetry()
	return func() {
		stop()
		await(forgotten.removals())
		if lock != nil {
			lock.Close()
		}
	}, nil
}

// claimInstance returns the lock, or nil without an id.
func claimInstance() (io.Closer, error) {
	c, err := tierenv.Settle(slog.Default(), slog.New(slog.DiscardHandler)) // runners log the same warnings
	if c.Instance == "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := c.PrepareRoot(); err != nil {
		return nil, err
	}
	lock, err := vfs.OS.Lock(filepath.Join(c.Local, instanceLock))
	switch {
	case errors.Is(err, vfs.ErrLocked):
		return nil, fmt.Errorf("OLLAMA_KV_INSTANCE_ID=%s is in use: another server keeps its pages in %s; stop that one, or give this one another id: %w", c.Instance, c.Local, err)
	case vfs.IsNoLocks(err):
		return nil, fmt.Errorf("OLLAMA_KV_INSTANCE_ID=%s needs file locks, which %s does not have; set OLLAMA_KV_TIER_LOCAL to a local disk: %w", c.Instance, c.Local, err)
	case err != nil:
		return nil, fmt.Errorf("claim the directory of OLLAMA_KV_INSTANCE_ID=%s: %w", c.Instance, err)
	}
	return lock, nil
}

// server names the server that started this runner, so that a server's runners find each other. The
// name is the server's process id and start, which no other process of this machine shares.
func server() string {
	pid := os.Getppid()
	return fmt.Sprintf("%d %s", pid, startOf(pid))
}

// startOf is the start of a process: the id of the boot, and the clock ticks since then.
// Without /proc startOf is empty. A process id may then come back while pages of its last
// owner's runners are in memory; the cost is a share of the budget only.
func startOf(pid int) string {
	boot, _ := proc.Boot()
	stat, err := proc.Read(pid)
	if err != nil {
		return boot
	}
	return fmt.Sprintf("%s %d", boot, stat.Start)
}
