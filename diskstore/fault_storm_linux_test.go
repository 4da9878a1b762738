package diskstore

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/mounts"
)

// stormEnv makes the test binary one of the processes of a storm. Its value is the directory
// with both roots.
const stormEnv = "KVTIER_STORM_DIR"

const stormProcesses = 8

func stormOptions(dir string) Options {
	return Options{
		Fingerprint: testFingerprint(1), PageTokens: testTokens, Compress: os.Getpid()%2 == 0,
		Local:         TierConfig{Root: filepath.Join(dir, "local"), BudgetBytes: 1 << 20},
		Remote:        TierConfig{Root: filepath.Join(dir, "remote"), BudgetBytes: 2 << 20},
		RemoteTimeout: time.Minute, ReadTimeout: time.Minute,
	}
}

// TestStormProcess is not a test but a process of TestKillStorm: it puts, reads, evicts and
// checks until it is killed, and prints a line after each operation.
func TestStormProcess(t *testing.T) {
	dir := os.Getenv(stormEnv)
	if dir == "" {
		t.Skip("it is started by TestKillStorm")
	}
	s, err := Open(ctx, stormOptions(dir))
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(uint64(os.Getpid()), 1))
	for {
		tokens := prompt(rng.IntN(24), 1+rng.IntN(3*testTokens+5))
		switch rng.IntN(8) {
		default:
			stormPut(t, s, tokens)
		case 0, 1, 2:
			stormRead(t, s, tokens)
		case 3:
			require.NoError(t, s.local.room.Collect(ctx, room.Demand{Disk: int64(rng.IntN(100_000))}))
		case 4:
			scan(t, s)
		}
		require.Zero(t, s.Stats().Damaged+s.Stats().Mismatched)
		fmt.Println("done")
	}
}

// stormPut stores a chain. A full tier is not a failure.
func stormPut(t *testing.T, s *Store, tokens []int32) {
	parent := s.opt.Fingerprint
	for at := 0; at < len(tokens); at += testTokens {
		p := faultPage(t, parent, at, tokens[at:min(at+testTokens, len(tokens))])
		if err := s.Put(ctx, p); !errors.Is(err, tier.ErrNoSpace) {
			require.NoError(t, err)
		}
		parent = p.Key()
	}
}

// stormRead reads a chain while other processes evict pages.
func stormRead(t *testing.T, s *Store, tokens []int32) {
	for _, ref := range s.Find(ctx, Prompt{Tokens: tokens}).Exact {
		if err := tryRead(t, s, ref, tokens, faultSections); !errors.Is(err, tier.ErrNotFound) {
			require.NoError(t, err)
		}
	}
}

// TestKillStorm kills processes that share a local and a remote root, on a filesystem of their
// own, one after another in the middle of their operations. After each kill every visible page
// is whole. After the last kill, a store that opens the roots counts the files exactly and
// cleans up.
func TestKillStorm(t *testing.T) {
	statesOneByOne(t)
	kills := 104
	if longRun() {
		kills = 504
	}
	image := mounts.NewImage(t, "ext4", mounts.Ext4Bytes)
	require.NoError(t, os.Mkdir(filepath.Join(image.Dir, "remote"), 0o700))
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for killed := 0; killed < kills; killed += stormProcesses {
		var round sync.WaitGroup
		for range stormProcesses {
			after := 1 + rng.IntN(30)
			round.Add(1)
			go func() {
				defer round.Done()
				if err := killInStorm(image.Dir, after); err != nil {
					t.Error(err)
				}
				if err := checkPages(image.Dir); err != nil {
					t.Error(err)
				}
			}()
		}
		round.Wait()
		if t.Failed() {
			return
		}
		afterStorm(t, image.Dir)
	}
	t.Logf("kills: %d", kills)
}

// killInStorm starts a process and kills it after the given number of operations.
func killInStorm(dir string, after int) error {
	child := exec.Command("/proc/self/exe", "-test.run=^TestStormProcess$", "-test.timeout=5m")
	child.Env = append(os.Environ(), stormEnv+"="+dir)
	var stderr bytes.Buffer
	child.Stderr = &stderr
	out, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	var text bytes.Buffer
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); {
		if lines.Text() != "done" {
			fmt.Fprintln(&text, lines.Text())
		} else if n++; n == after {
			if err := child.Process.Kill(); err != nil {
				return err
			}
		}
	}
	_ = child.Wait()
	if text.Len() > 0 || stderr.Len() > 0 || child.ProcessState.Exited() {
		return fmt.Errorf("a process of the storm ended by itself: %v\n%s%s", child.ProcessState, &text, &stderr)
	}
	return nil
}

// checkPages reads every page below a directory, while other processes add and remove pages.
func checkPages(folder string) error {
	return filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir() && d.Name() == storetest.QuarantineDir:
			return fmt.Errorf("something was put into quarantine: %s", path)
		case filepath.Ext(path) != dir.PageExt:
			return nil
		}
		if _, err := verifyFile(ctx, vfs.OS, path); err != nil && !errors.Is(err, tier.ErrNotFound) {
			return err
		}
		return nil
	})
}

// afterStorm checks both roots while no other process uses them.
func afterStorm(t *testing.T, folder string) {
	t.Helper()
	o := stormOptions(folder)
	s := start(t, o)
	life := &faultLife{t: t, s: s, o: o}
	life.demoteOne() // the first write to a remote tier cleans it
	for _, root := range []string{o.Local.Root, o.Remote.Root} {
		require.Empty(t, filesIn(t, root, dir.TmpExt), "files of dead processes are removed")
		require.Len(t, filesIn(t, filepath.Join(root, storetest.VersionDir, storetest.TmpDir), dir.LockExt), 1, "only the lock of the living process is left")
	}
	life.requireExact()
	require.NoError(t, checkPages(folder))
	require.Zero(t, s.Stats().Damaged+s.Stats().Mismatched)
	require.NoError(t, s.Close())
}
