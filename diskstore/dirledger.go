package diskstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/kvtier/kvtier/internal/vfs"
)

const (
	// ledgerWait is how long a process waits for others to be done with the
	// ledger, and ledgerPoll how often it looks, at first and at most. Each has
	// it for the time of two syncs.
	ledgerWait    = 5 * time.Second
	ledgerPollMin = time.Millisecond
	ledgerPollMax = 32 * time.Millisecond
)

func (t *dirTier) Account(ctx context.Context, change func(*ledger, string) error) (*ledger, error) {
	if err := t.ready(ctx); err != nil {
		return nil, classify(err)
	}
	if change == nil {
		l, err := t.readLedger(ctx)
		return l, t.opFailed(err)
	}
	t.ledgerMu.Lock()
	defer t.ledgerMu.Unlock()
	id, err := t.temp.claim()
	if err != nil {
		return nil, t.opFailed(err)
	}
	release, err := t.lockLedger(ctx)
	if err != nil {
		return nil, t.opFailed(err)
	}
	defer release()
	l, err := t.readLedger(ctx)
	if err != nil {
		return nil, t.opFailed(err)
	}
	if err := change(l, id); err != nil {
		return nil, err
	}
	return l, t.opFailed(t.writeLedger(l))
}

// lockLedger waits for the ledger's lock, which must be released.
func (t *dirTier) lockLedger(ctx context.Context) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerWait)
	defer cancel()
	path := filepath.Join(t.base, ledgerLock)
	for wait := ledgerPollMin; ; wait = min(2*wait, ledgerPollMax) {
		err := t.inDir(t.base, func() error {
			lock, err := t.fs.Lock(path)
			if err == nil {
				release = func() { lock.Close() }
			}
			return err
		})
		switch {
		case err == nil:
			return release, nil
		case vfs.IsNoLocks(err):
			// Two processes that change the ledger at once lose one change.
			return func() {}, nil
		case !errors.Is(err, vfs.ErrLocked):
			return nil, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("wait for %s, held by another process: %w", path, ctx.Err())
		}
	}
}

// readLedger returns a zero ledger where there is none that can be read.
func (t *dirTier) readLedger(ctx context.Context) (*ledger, error) {
	l, err := t.readLedgerOnce(ctx)
	if vfs.IsStale(err) {
		// Another machine has replaced it. One that stays stale is no ledger that
		// is not there: what is on the disk would count for nothing.
		if err := t.recheckRoot(); err != nil {
			return nil, err
		}
		return t.readLedgerOnce(ctx)
	}
	return l, err
}

func (t *dirTier) readLedgerOnce(ctx context.Context) (*ledger, error) {
	blob, err := openFileBlob(t.fs, filepath.Join(t.base, ledgerFile), Name{})
	if errors.Is(err, ErrNotFound) {
		return new(ledger), nil
	}
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	if blob.Info().Bytes > maxLedgerBytes {
		return new(ledger), nil
	}
	content := make([]byte, blob.Info().Bytes)
	if err := readFull(ctx, blob, content, 0); err != nil {
		if errors.Is(err, ErrDamaged) {
			return new(ledger), nil
		}
		return nil, err
	}
	l, err := decodeLedger(content)
	if err != nil {
		return new(ledger), nil
	}
	return l, nil
}

// writeLedger replaces the ledger, durably.
func (t *dirTier) writeLedger(l *ledger) error {
	content, err := l.encode()
	if err != nil {
		return err
	}
	path := filepath.Join(t.base, ledgerFile)
	file, tmp, err := t.temp.create("usage")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	if cerr := file.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = t.fs.Rename(tmp, path)
	}
	if err != nil {
		t.temp.discard(tmp, 0)
		return err
	}
	return t.fs.SyncDir(t.base)
}
