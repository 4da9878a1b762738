package tiering

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/internal/vfs"
)

// instanceLock is the file below a server's own directory that it holds while it lives.
const instanceLock = "server.lock"

// ClaimInstance decides where pages are kept, and takes the local directory of a server that
// has an OLLAMA_KV_INSTANCE_ID. The server calls it once, before it starts a runner, and
// release when it ends; however else that happens, the directory is free again then. Runners
// use it and do not hold it.
//
// It returns an error when another server holds the directory: then this one must not
// start, since both would take it for theirs. When the directory cannot be had for another
// reason tiering is turned off for the whole server, and a log line says why.
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
		// runners read it from here: without the lock none may use the directory
		return func() {}, os.Setenv("OLLAMA_KV_TIERING", "0")
	}
	if lock == nil {
		return func() {}, nil
	}
	return func() { lock.Close() }, nil
}

// settleRoot reads the environment, and writes the default directory into it where that says
// none: a server and all its runners use one for as long as they live, and what is chosen
// depends on what is on disk. None is chosen where another variable keeps tiering off.
func settleRoot(log, warnings *slog.Logger) (tierenv.Config, error) {
	c, err := tierenv.FromEnvironment(warnings)
	if err != nil {
		return c, err
	}
	path, why, err := tierenv.LocalRoot()
	if err == nil && why != tierenv.LocalVariable {
		tierenv.LogRoot(log, path, why)
		_ = os.Setenv(tierenv.LocalVariable, path) // fails for no path that was found
	}
	return c, err
}

// claimInstance returns the lock, nil where there is no id.
func claimInstance() (io.Closer, error) {
	c, err := settleRoot(slog.Default(), slog.New(slog.DiscardHandler)) // runners repeat its warnings
	if c.Instance == "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := prepareRoot(c); err != nil {
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
