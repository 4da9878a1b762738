package tierenv

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// StoreOptions are the options of a store with these settings, for any model.
func (c Config) StoreOptions() diskstore.Options {
	return diskstore.Options{
		PageTokens:     c.PageTokens,
		Local:          diskstore.TierConfig{Root: c.Local, BudgetBytes: c.LocalBytes},
		Remote:         diskstore.TierConfig{Root: c.Remote, BudgetBytes: c.RemoteBytes},
		RAM:            diskstore.RAMConfig{BudgetBytes: c.RAMBytes},
		WritePerDay:    c.WriteBytesPerDay,
		ReadAheadBytes: c.ReadAheadBytes,
		Compress:       c.Compress,
	}
}

// PrepareRoot makes the local root, and refuses an unsafe one: K/V is the prompt in another
// form.
func (c Config) PrepareRoot() error {
	for _, root := range c.localDirs() {
		if err := os.MkdirAll(root, 0o700); err != nil {
			return fmt.Errorf("make the page store's directory: %w; set OLLAMA_KV_TIER_LOCAL to one this user may write", err)
		}
		if err := dir.CheckRoot(vfs.OS, root); err != nil {
			return err
		}
	}
	return nil
}

// localDirs is Local and, for a server with an id, also Local's parents from the directory
// that servers share on: a user who may write to a parent could replace Local.
func (c Config) localDirs() []string {
	if c.Instance == "" {
		return []string{c.Local}
	}
	instances := filepath.Dir(c.Local)
	return []string{filepath.Dir(instances), instances, c.Local}
}
