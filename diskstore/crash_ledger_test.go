package diskstore

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestCrashLeavesNoLedgerTooLow cuts the power at every operation of a workload and compares
// the bytes of the remaining files with the ledger's figure.
func TestCrashLeavesNoLedgerTooLow(t *testing.T) {
	statesOneByOne(t)
	for _, mode := range crashModes {
		t.Run(mode.name, func(t *testing.T) { crashLeavesNoLedgerTooLow(t, recordCrashes(t, 101, mode.set)) })
	}
}

func crashLeavesNoLedgerTooLow(t *testing.T, r *crashRecord) {
	states := 0
	for i := range r.points {
		at := &r.points[i]
		for _, c := range r.cases(i) {
			if c.spare != "" {
				continue
			}
			states++
			mem := at.mem.Crash(c.keep, uint64(at.nth)<<8|c.seed)
			for _, root := range []string{r.o.Local.Root, r.o.Remote.Root} {
				require.NoError(t, checkLedger(mem, root), "operation %d (%s), %v kept, seed %d", at.nth, at.what, c.keep, c.seed)
			}
		}
	}
	require.Greater(t, states, 1500)
}

// checkLedger compares a ledger with the bytes of pages, tails and quarantined files.
// Temporary files are removed before the next write.
func checkLedger(mem *vfs.Mem, root string) error {
	content, err := dir.New(mem, root, dir.Options{}).Account(ctx, nil)
	l := ledger.Read(content)
	if err != nil || l.Counts == 0 {
		return err // no write happens before a count
	}
	found, err := walk(mem, root)
	if err != nil {
		return err
	}
	occupied := found.bytes
	quarantine := filepath.Join(root, storetest.VersionDir, storetest.QuarantineDir)
	entries, err := mem.ReadDir(quarantine)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	damaged := make(map[pagefile.Key]bool) // in its place, and perhaps in quarantine as well
	for path, key := range found.placed {
		_, err := verifyFile(ctx, mem, path)
		damaged[key] = err != nil
	}
	for _, e := range entries {
		hex, _, _ := strings.Cut(e.Name(), ".")
		if key, err := pagefile.ParseKey(hex); err == nil && damaged[key] {
			continue // one file of which both names have survived
		}
		info, err := mem.Lstat(filepath.Join(quarantine, e.Name()))
		if err != nil {
			return err
		}
		occupied += mem.PhysicalBytes(info)
	}
	if occupied > l.Figure() {
		return fmt.Errorf("files in %s occupy %d bytes, the ledger says at most %d", root, occupied, l.Figure())
	}
	return nil
}
