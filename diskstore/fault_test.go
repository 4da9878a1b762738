package diskstore

import (
	"context"
	"fmt"
	"regexp"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

func cancelled() (context.Context, context.CancelFunc) {
	done, cancel := context.WithCancel(context.Background())
	cancel()
	return done, cancel
}

// requireExact fails unless the store's numbers equal a fresh count.
func requireExact(t *testing.T, s *Store) {
	t.Helper()
	require.NoError(t, s.Flush(ctx))
	before := s.Stats().Local
	scan(t, s)
	after := s.Stats().Local
	before.Down, after.Down = false, false
	require.Equal(t, after, before)
}

// TestPutSurvivesAnErrorAtEveryOperation makes each operation of a Put of a page and of a tail
// fail in turn.
func TestPutSurvivesAnErrorAtEveryOperation(t *testing.T) {
	statesOneByOne(t)
	errnos := []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS, syscall.ESTALE}
	for _, tokens := range []int{testTokens, testTokens - 2} {
		for _, errno := range errnos {
			t.Run(fmt.Sprintf("%d tokens/%v", tokens, errno), func(t *testing.T) {
				s, o, inj := openInjected(t)
				putChain(t, s, prompt(999, tokens)) // directories exist, as usual
				for nth := 1; ; nth++ {
					tokens := prompt(nth, tokens)
					p := pageOf(t, s.opt.Fingerprint, 0, tokens)
					inj.Reset()
					inj.Add(vfs.Rule{Nth: nth, Err: errno, Short: 100})
					err := s.Put(ctx, p)
					require.NoError(t, s.Flush(ctx))
					ops := inj.Count()
					inj.Reset()

					// The page is whole or absent; with a nil error it is whole.
					n := tokensIn(s.Find(ctx, Prompt{Tokens: tokens}).Exact)
					if err == nil {
						require.Equal(t, len(tokens), n)
					}
					readChain(t, s, tokens, n)
					require.Empty(t, filesIn(t, o.Local.Root, dir.TmpExt), "no temporary file stays behind")
					requireExact(t, s)
					require.NoError(t, s.Put(ctx, p), "the next Put works")
					readChain(t, s, tokens, len(tokens))
					putChain(t, s, prompt(10_000+nth, len(tokens)))
					if nth > ops {
						break // every operation has failed once
					}
				}
				require.Zero(t, s.Stats().Damaged)
			})
		}
	}
}

func TestReadSurvivesAnErrorAtEveryOperation(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.ESTALE, syscall.EMFILE} {
		s, _, inj := openInjected(t)
		tokens := prompt(1, 2*testTokens+3)
		for nth := 1; ; nth++ {
			putChain(t, s, tokens) // again, after an unreadable sector
			inj.Reset()
			inj.Add(vfs.Rule{Nth: nth, Err: errno})
			for _, ref := range s.Find(ctx, Prompt{Tokens: tokens}).Exact {
				_ = tryRead(t, s, ref, tokens, testSections)
			}
			ops := inj.Count()
			inj.Reset()
			requireExact(t, s)
			if nth > ops {
				break
			}
		}
		readChain(t, s, tokens, len(tokens))
	}
}

func TestFailedSyncIsNeverRetried(t *testing.T) {
	s, o, inj := openInjected(t)
	tokens := prompt(1, testTokens)
	p := pageOf(t, s.opt.Fingerprint, 0, tokens)
	inj.Reset()
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpSync}, Err: syscall.EIO})
	require.ErrorIs(t, s.Put(ctx, p), syscall.EIO)
	require.Equal(t, 1, inj.Count(vfs.OpSync))
	require.Zero(t, inj.Count(vfs.OpRename))
	require.Empty(t, filesIn(t, o.Local.Root, dir.TmpExt))
	require.True(t, s.Stats().Local.Down)
	inj.Reset()
	require.NoError(t, s.Put(ctx, p))
	require.False(t, s.Stats().Local.Down)
}

func TestFullDiskCollectsOnceThenGivesUp(t *testing.T) {
	s, _, inj := openInjected(t)
	old := prompt(1, 3*testTokens)
	putChain(t, s, old)
	p := pageOf(t, s.opt.Fingerprint, 0, prompt(2, testTokens))

	// After one failure for lack of space there is room: the oldest chain was evicted, from
	// its end, also for the room of directories.
	inj.Reset()
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpWrite}, Nth: 2, Err: syscall.ENOSPC, Short: 4096})
	require.NoError(t, s.Put(ctx, p))
	inj.Reset()
	readChain(t, s, prompt(2, testTokens), testTokens)
	readChain(t, s, old, testTokens)
	require.EqualValues(t, 2, s.Stats().Evicted)
	requireExact(t, s)

	// With a disk that stays full the page is dropped, after one retry.
	q := pageOf(t, s.opt.Fingerprint, 0, prompt(3, testTokens))
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpWrite}, Err: syscall.ENOSPC})
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpCreate}, Path: regexp.MustCompile(`-[0-9]+\.tmp$`), Nth: 3, Err: syscall.EIO})
	err := s.Put(ctx, q)
	require.ErrorIs(t, err, tier.ErrNoSpace)
	require.NotErrorIs(t, err, syscall.EIO, "there is no third attempt")
	require.EqualValues(t, 1, s.Stats().PutErrors)
	inj.Reset()
	require.NoError(t, s.Put(ctx, q))
	requireExact(t, s)
}

func TestOpenWithFailingRoot(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EACCES, syscall.EROFS, syscall.EIO} {
		inj := vfs.Inject(quickFS)
		inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpMkdir}, Err: errno})
		o := testOptions(t, withFS(inj))
		_, err := Open(ctx, o)
		require.ErrorIs(t, err, errno)
		require.ErrorContains(t, err, o.Local.Root)
	}
	inj := vfs.Inject(quickFS)
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpWrite}, Err: syscall.ENOSPC})
	o := testOptions(t, withFS(inj))
	s := open(t, o) // a full disk can still be read
	inj.Reset()
	putChain(t, s, prompt(1, testTokens))
}

func TestFilesystemWithoutLocks(t *testing.T) {
	inj := vfs.Inject(quickFS)
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpLock}, Err: syscall.ENOLCK})
	page := physicalPage(t)
	s := open(t, testOptions(t, withFS(inj), func(o *Options) { o.Local.BudgetBytes = 2 * page }))
	putChain(t, s, prompt(1, 4))
	putChain(t, s, prompt(2, testTokens))
	putChain(t, s, prompt(3, 2*testTokens))
	require.NoError(t, s.Flush(ctx))
	require.LessOrEqual(t, s.Stats().Local.Bytes, 2*page)
	readChain(t, s, prompt(3, 2*testTokens), 2*testTokens)
}

func TestLocalLookupErrorsEndTheChain(t *testing.T) {
	s, _, inj := openInjected(t)
	tokens := prompt(1, 3*testTokens)
	pages := putChain(t, s, tokens)
	inj.Add(vfs.Rule{Path: regexp.MustCompile(pages[1].Key().String()), Err: syscall.EIO})
	readChain(t, s, tokens, testTokens)
	require.NotZero(t, s.Stats().TierErrors)
}

func TestOperationsWithCancelledContext(t *testing.T) {
	s := open(t, testOptions(t))
	tokens := prompt(1, testTokens)
	p := putChain(t, s, tokens)[0]
	done, cancel := cancelled()
	defer cancel()
	ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
	require.ErrorIs(t, s.Read(done, ref, tokens, p.Layout, Into{Rows: make([]byte, p.Layout.Size())}), context.Canceled)
	require.ErrorIs(t, s.Put(done, pageOf(t, s.opt.Fingerprint, 0, prompt(2, testTokens))), context.Canceled)
	require.Empty(t, s.Find(done, Prompt{Tokens: tokens}).Exact)
	require.Zero(t, s.Stats().TierErrors)
	require.False(t, s.Stats().Local.Down)
}

func TestCloseEndsWaitingCallers(t *testing.T) {
	gate := vfs.NewGate()
	o, inj := injected(t, withRemote(t))
	s := start(t, o)
	require.NoError(t, s.Flush(ctx))
	inj.Add(vfs.Rule{Path: regexp.MustCompile(regexp.QuoteMeta(o.Remote.Root)), Gate: gate})
	ref := Ref{Key: pagefile.Key{1}, Tokens: testTokens, Stored: testTokens, Tier: tier.Remote}
	failed := make(chan error, 1)
	go func() { failed <- readError(t, s, ref, prompt(1, testTokens)) }()
	<-gate.Entered()
	closeInTime(t, s)
	require.Error(t, <-failed)
	gate.Open()
}
