package dir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

const (
	// ledgerWait bounds the wait for the ledger's lock. ledgerPollMin and ledgerPollMax are the first
	// and the longest time between two attempts. A process holds the lock for about two syncs.
	ledgerWait    = 5 * time.Second
	ledgerPollMin = time.Millisecond
	ledgerPollMax = 32 * time.Millisecond
)

// maxOwnBytes bounds the read of one of the store's own files, whose content is not trusted;
// thousands of claims fit.
const maxOwnBytes = 1 << 20

// records are the files below a root that a store replaces as a whole: the ledger, and the list of
// removed pages.
type records struct {
	*root
	temp *tempDir
	mu   sync.Mutex // one user of the ledger's lock at a time in this process, without polling
}

func (t *records) Account(ctx context.Context, change func([]byte, string) ([]byte, error)) ([]byte, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	if change == nil {
		content, err := t.readOwn(ctx, ledgerFile)
		return content, t.opFailed(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	id, err := t.temp.claim()
	if err != nil {
		return nil, t.opFailed(err)
	}
	release, err := t.lockLedger(ctx)
	if err != nil {
		return nil, t.opFailed(err)
	}
	defer release()
	content, err := t.readOwn(ctx, ledgerFile)
	if err != nil {
		return nil, t.opFailed(err)
	}
	if content, err = change(content, id); err != nil {
		return nil, err
	}
	return content, t.opFailed(t.writeOwn(ledgerFile, content, true))
}

// lockLedger waits for the ledger's lock. The caller calls release.
func (t *records) lockLedger(ctx context.Context) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerWait)
	defer cancel()
	path := filepath.Join(t.base, ledgerLock)
	for wait := ledgerPollMin; ; wait = min(2*wait, ledgerPollMax) {
		err := t.inDir(t.base, func() error {
			lock, err := t.FS.Lock(path)
			if err == nil {
				release = func() { lock.Close() }
			}
			return err
		})
		switch {
		case err == nil:
			return release, nil
		case vfs.IsNoLocks(err):
			// Two processes that change the ledger at the same time lose one change.
			return func() {}, nil
		case !errors.Is(err, vfs.ErrLocked):
			return nil, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s, held by another process: %w", path, ctx.Err())
		}
	}
}

// readOwn reads one of the store's own files; nil without a readable one of at most maxOwnBytes.
func (t *records) readOwn(ctx context.Context, base string) ([]byte, error) {
	content, err := t.readOwnOnce(ctx, base)
	if vfs.IsStale(err) {
		// Another machine has replaced the file. A ledger that stays stale is an error and
		// not a missing ledger: as a missing ledger, the bytes on the disk would count as 0.
		if err := t.recheckRoot(); err != nil {
			return nil, err
		}
		return t.readOwnOnce(ctx, base)
	}
	return content, err
}

func (t *records) readOwnOnce(ctx context.Context, base string) ([]byte, error) {
	blob, err := OpenFile(t.FS, filepath.Join(t.base, base), pagefile.Name{})
	if errors.Is(err, tier.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	if blob.Info().Bytes > maxOwnBytes {
		return nil, nil
	}
	content := make([]byte, blob.Info().Bytes)
	err = blob.ReadAt(ctx, content, 0)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, nil
	}
	return content, err
}

func (t *records) writeOwn(base string, content []byte, durable bool) error {
	file, tmp, err := t.temp.create("usage")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil && durable {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = t.FS.Rename(tmp, filepath.Join(t.base, base))
	}
	if err != nil {
		t.temp.left.discard(tmp, 0)
		return err
	}
	if !durable {
		return nil
	}
	return t.FS.SyncDir(t.base)
}

func (t *records) Tombstones(ctx context.Context, change func([]byte) []byte) ([]byte, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	content, err := t.readOwn(ctx, tombstonesFile)
	if err != nil || change == nil {
		return content, t.opFailed(err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	content = change(content)
	return content, t.opFailed(t.writeOwn(tombstonesFile, content, false))
}
