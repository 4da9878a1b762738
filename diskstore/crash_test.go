package diskstore

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// crashRootEnv makes the test binary the process that is killed.
const crashRootEnv = "KVTIER_CRASH_ROOT"

// Budgets of the process that is killed, in bytes.
const (
	crashLocalBudget  = 4 << 20
	crashRemoteBudget = 8 << 20
)

// crashChild writes chains until it dies, and prints a line before and after each Put.
func crashChild(root string) {
	s, err := Open(ctx, Options{
		Fingerprint: testFingerprint(1), PageTokens: testTokens,
		Local:  TierConfig{Root: filepath.Join(root, "local"), BudgetBytes: crashLocalBudget},
		Remote: TierConfig{Root: filepath.Join(root, "remote"), BudgetBytes: crashRemoteBudget},
	})
	if err != nil {
		fmt.Println("error", err)
		return
	}
	for seed := os.Getpid() * 1000; ; seed++ {
		tokens := prompt(seed%2000, 4*testTokens+5)
		parent := s.opt.Fingerprint
		for at := 0; at < len(tokens); at += testTokens {
			p := pageOf(crashT{}, parent, at, tokens[at:min(at+testTokens, len(tokens))])
			parent = p.Key()
			fmt.Println("put", parent)
			if err := s.Put(ctx, p); err != nil {
				fmt.Println("error", err)
				return
			}
			fmt.Println("durable", parent)
		}
	}
}

// crashT lets the child use the test helpers.
type crashT struct{ testing.TB }

func (crashT) Helper()                   {}
func (crashT) Errorf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (crashT) FailNow()                  { panic("failed") }

// TestSIGKILL kills a writing process at random points of its output and checks that every
// visible page is whole.
func TestSIGKILL(t *testing.T) {
	const kills = 100
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "remote"), 0o700))
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for range kills {
		last := killAfter(t, root, 1+rng.IntN(40), rng.IntN(400))
		for tier, budget := range map[string]int64{"local": crashLocalBudget, "remote": crashRemoteBudget} {
			dir := filepath.Join(root, tier)
			require.LessOrEqual(t, occupied(t, dir), int64(budget), tier)
			if _, err := os.Stat(ledgerPath(Options{Local: TierConfig{Root: dir}})); err == nil {
				require.LessOrEqual(t, occupied(t, dir), recorded(t, dir), tier)
			}
		}
		requireWhole(t, filesIn(t, root, dir.PageExt)...)
		// Every page reported durable is in one tier, unless it was evicted. The youngest page
		// is never evicted.
		if last != "" {
			var found bool
			for _, path := range filesIn(t, root, dir.PageExt) {
				found = found || filepath.Base(path) == last+dir.PageExt
			}
			require.True(t, found, "page %s was durable and is gone", last)
		}
	}
	s := open(t, Options{
		Fingerprint: testFingerprint(1), PageTokens: testTokens,
		Local: TierConfig{Root: filepath.Join(root, "local")}, Remote: TierConfig{Root: filepath.Join(root, "remote")},
	})
	require.Empty(t, filesIn(t, filepath.Join(root, "local"), dir.TmpExt), "files of dead processes are removed")
	require.Zero(t, s.Stats().Damaged)
	require.NotZero(t, s.Stats().Local.Pages)
	require.NoDirExists(t, filepath.Join(root, "local", storetest.VersionDir, storetest.QuarantineDir))
}

// killAfter runs a child, kills it some time after its n-th line and returns the last page
// reported durable.
func killAfter(t *testing.T, root string, n, spins int) string {
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), crashRootEnv+"="+root)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	last := ""
	lines := bufio.NewScanner(out)
	for i := 0; lines.Scan(); i++ {
		var what, arg string
		fmt.Sscan(lines.Text(), &what, &arg)
		require.NotEqual(t, "error", what, lines.Text())
		if what == "durable" {
			last = arg
		}
		if i == n {
			for s := 0; s < spins*1000; s++ { // into the middle of the next operation
				_ = s
			}
			require.NoError(t, child.Process.Kill())
		}
	}
	_ = child.Wait() // ends with the signal
	return last
}
