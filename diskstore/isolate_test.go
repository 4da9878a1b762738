package diskstore

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// syncWriter is a log that several goroutines write to.
type syncWriter struct {
	mu sync.Mutex
	b  strings.Builder
}

func (w *syncWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *syncWriter) count(s string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Count(w.b.String(), s)
}

// hungRemote returns a store whose remote tier holds the second half of a chain and hangs, and
// a function that ends the hang.
func hungRemote(t *testing.T, log io.Writer) (s *Store, tokens []int32, revive func()) {
	o, inj := injected(t, withRemote(t), func(o *Options) {
		o.RemoteTimeout = 20 * time.Millisecond
		o.ReadTimeout = 20 * time.Millisecond
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
	})
	s = start(t, o)
	tokens = prompt(1, 4*testTokens)
	putChain(t, s, tokens)
	require.NoError(t, s.Flush(ctx))
	moveToRemote(t, o, namesOf(s, tokens)[2:])
	gate := hold(inj, vfs.Rule{Path: regexp.MustCompile("^" + regexp.QuoteMeta(o.Remote.Root))})
	return s, tokens, gate.Open
}

func TestHungRemoteNeverHoldsUpALookup(t *testing.T) {
	log := new(syncWriter)
	s, tokens, revive := hungRemote(t, log)
	defer revive()
	before := runtime.NumGoroutine()
	asked := 0
	for range 200 {
		if !s.guard.Breaker.Down() {
			asked++
		}
		require.Equal(t, 2*testTokens, tokensIn(s.Find(ctx, Prompt{Tokens: tokens}).Exact), "local pages are found nevertheless")
	}
	require.LessOrEqual(t, asked, failuresToOpen, "afterwards no operation waits")
	require.True(t, s.Stats().Remote.Down)
	require.LessOrEqual(t, runtime.NumGoroutine(), before+2*(2*remoteWorkers))

	// New pages and reads continue; a read of a page that is only remote fails fast.
	putChain(t, s, prompt(5, testTokens+1))
	ref := Ref{Key: pagefile.Key{5}, Tokens: testTokens, Stored: testTokens, Tier: tier.Remote}
	require.Error(t, readError(t, s, ref, tokens[:testTokens]))
	require.Equal(t, 1, log.count("not usable"), "one line for one change of state")

	closeInTime(t, s)
	// goleak checks that the workers end after the mount releases them.
}

func TestHungRemoteComesBack(t *testing.T) {
	log := new(syncWriter)
	s, tokens, revive := hungRemote(t, log)
	defer func() { require.NoError(t, s.Close()) }()
	for !s.guard.Breaker.Down() {
		s.Find(ctx, Prompt{Tokens: tokens})
	}
	revive()
	askAgain(s)
	s.guard.LookupIn, s.guard.StepIn = time.Minute, time.Minute
	setRemoteTimeout(s, time.Minute)
	readChain(t, s, tokens, len(tokens))
	require.False(t, s.Stats().Remote.Down)
	require.Equal(t, 1, log.count("is back"))
	require.NoError(t, s.Flush(ctx))
}

func TestMissingRemoteIsTriedAgain(t *testing.T) {
	log := new(syncWriter)
	o := testOptions(t, func(o *Options) {
		o.Remote.Root = filepath.Join(t.TempDir(), "mnt")
		o.RemoteTimeout = time.Minute
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
	})
	s := open(t, o)
	tokens := putPrompt(t, s, 1, testTokens)
	readChain(t, s, tokens, testTokens)
	s.Find(ctx, Prompt{Tokens: prompt(2, testTokens)})
	require.True(t, s.Stats().Remote.Down)
	require.Equal(t, 1, log.count("not usable"))
	require.NoDirExists(t, o.Remote.Root, "an unmounted mount point is not filled")
	use, err := recount(ctx, s)
	require.NoError(t, err)
	require.ErrorIs(t, use.RemoteErr, tier.ErrTierDown)
	require.ErrorContains(t, use.RemoteErr, "mount it, or create it", "the reason why the tier is down")

	require.NoError(t, os.Mkdir(o.Remote.Root, 0o700))
	askAgain(s)
	use = scan(t, s)
	require.Equal(t, 1, log.count("is back"))
}

// TestUnsafeRemoteIsOneError: the store is not opened, so no log line may say that it
// continues.
func TestUnsafeRemoteIsOneError(t *testing.T) {
	log := new(syncWriter)
	o := testOptions(t, withRemote(t), func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	require.NoError(t, os.Chmod(o.Remote.Root, 0o777))
	_, err := Open(ctx, o)
	require.ErrorIs(t, err, tier.ErrRootMode)
	_, err = OpenRoot(ctx, RootOptions{Local: o.Local, Remote: o.Remote, Logger: o.Logger})
	require.ErrorIs(t, err, tier.ErrRootMode)
	require.Zero(t, log.count("not usable"))
}

// TestToolsDoNotRetry: a tool reports an unusable tier in its error, once.
func TestToolsDoNotRetry(t *testing.T) {
	log := new(syncWriter)
	o := someRoot(t)
	require.NoError(t, os.RemoveAll(o.Remote.Root))
	r, err := OpenRoot(ctx, RootOptions{Local: o.Local, Remote: o.Remote, Logger: slog.New(slog.NewTextHandler(log, nil))})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	use, err := r.Usage(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(use.RemoteErr.Error(), o.Remote.Root), use.RemoteErr)
	require.Zero(t, log.count("not usable"))
}

// TestLateUploadReplacesABadPage: a page whose upload was given up and succeeded is not taken
// for the bad page that was in its place.
func TestLateUploadReplacesABadPage(t *testing.T) {
	s, o, inj := openInjected(t, withRemote(t))
	name := s.pages.Page(putChain(t, s, prompt(1, testTokens))[0].Key())
	require.NoError(t, s.demote(ctx, mustStat(t, s.disk, name)))
	there := mustStat(t, s.guard, name)
	s.remote.checked.Bad.Note(there, 0)

	content := fileOf(t, filePath(o.Local.Root, name))
	up, err := s.guard.Create(ctx, name)
	require.NoError(t, err)
	require.NoError(t, up.Write(ctx, content))
	gate := hold(inj, vfs.Rule{Path: regexp.MustCompile("^" + regexp.QuoteMeta(o.Remote.Root)), Ops: []vfs.Op{vfs.OpRename}})
	leaving, leave := context.WithCancel(ctx)
	go func() {
		<-gate.Entered()
		leave()
	}()
	_, err = up.Commit(leaving, there.Used)
	require.ErrorIs(t, err, context.Canceled)
	up.Abort()
	gate.Open()
	idle(s.guard)
	there = mustStat(t, s.guard, name)
	require.False(t, s.remote.checked.Bad.IsBad(there), "the good page counts as bad")
}
