package diskstore

import (
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/vfs"
)

// troubleLog keeps the errors that Options.Trouble is told.
type troubleLog struct {
	mu  sync.Mutex
	all []error
}

func (t *troubleLog) note(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, err)
}

func (t *troubleLog) last() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.all) == 0 {
		return nil
	}
	return t.all[len(t.all)-1]
}

// fewInodes is a filesystem with room for a number of files below a directory.
type fewInodes struct {
	vfs.FS
	mu    sync.Mutex
	files map[string]bool
	most  int
}

func (f *fewInodes) Create(name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.files) >= f.most {
		return nil, &os.PathError{Op: "create", Path: name, Err: syscall.ENOSPC}
	}
	file, err := f.FS.Create(name)
	if err == nil {
		f.files[name] = true
	}
	return file, err
}

func (f *fewInodes) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.FS.Remove(name)
	if err == nil {
		delete(f.files, name)
	}
	return err
}

func (f *fewInodes) Rename(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.FS.Rename(from, to)
	if err == nil && f.files[from] {
		delete(f.files, from)
		f.files[to] = true
	}
	return err
}

// TestFewInodes: a filesystem without inodes takes a new page when an old one leaves. The new page
// is stored, since old ones would stay for ever otherwise, and somebody is told: pages leave far
// below the budget.
func TestFewInodes(t *testing.T) {
	const pages = 60
	var told troubleLog
	o := testOptions(t, func(o *Options) {
		o.FS = &fewInodes{FS: quickFS, files: make(map[string]bool), most: 40}
		o.Local.BudgetBytes, o.Trouble = 10*pages*physicalPage(t), told.note
	})
	s := open(t, o)
	now := time.Now()
	s.now = func() time.Time { return now }
	for seed := range pages {
		now = now.Add(time.Second)
		require.NoError(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(seed, testTokens))))
	}
	readChain(t, s, prompt(pages-1, testTokens), testTokens)
	require.NotZero(t, s.Stats().LocalEvicted)
	require.ErrorIs(t, told.last(), ErrNoInodes)
	require.Regexp(t, `\d+ MB are free$`, told.last().Error())

	now = now.Add(2 * crowdedLasts)
	for _, err := range told.all[:5] {
		require.NoError(t, err, "there were inodes")
	}
	s.opt.FS.(*fewInodes).most = 400
	require.NoError(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(pages, testTokens))))
	require.NoError(t, told.last(), "there are inodes again")
}

// TestTrouble: every page that should have been stored is told, with its error.
func TestTrouble(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EACCES, syscall.ENAMETOOLONG, syscall.EIO} {
		t.Run(errno.Error(), func(t *testing.T) {
			var told troubleLog
			s, o, inj := openInjected(t, func(o *Options) { o.Trouble = told.note })
			require.NoError(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(1, testTokens))))
			require.NoError(t, told.last())
			inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpCreate}, Path: regexp.MustCompile(`\.tmp$`), Err: errno})
			require.Error(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(2, testTokens))))
			require.ErrorIs(t, told.last(), errno)
			inj.Reset()
			require.NoError(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(3, testTokens))))
			require.NoError(t, told.last())
		})
	}
}

// TestTroubleOfASmallBudget names the budget.
func TestTroubleOfASmallBudget(t *testing.T) {
	var told troubleLog
	s, o := openNew(t, func(o *Options) { o.Local.BudgetBytes, o.Trouble = 4096, told.note })
	require.Error(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(1, testTokens))))
	require.True(t, strings.Contains(told.last().Error(), "budget"), told.last())
}
