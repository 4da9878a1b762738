package move

import (
	"context"
	"errors"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// copied is a page that was copied, every byte of which was good.
type copied struct {
	header *pagefile.Header
	from   tier.Info // the file that was read
}

// copyPage copies a page from one tier to another, durably, with a check of every byte; commit
// finishes the copy. copyPage returns pagefile.ErrDamaged or pagefile.ErrMismatch, and stores
// nothing, when src does not hold a good page of that name, even when read past the cache.
func copyPage(ctx context.Context, src, dst tier.Tier, name pagefile.Name, room *ledger.Room, commit func(tier.Upload) error) (copied, error) {
	page, err := copyOnce(ctx, src, false, dst, name, room, commit)
	if side := new(copyError); errors.As(err, &side) && side.side == src && tier.Doubtful(err) {
		first := err
		page, err = copyOnce(ctx, src, true, dst, name, room, commit)
		if errors.As(err, &side) {
			side.first = first
		}
	}
	return page, err
}

// copyOnce does as copyPage, with the page opened once, with anew past the cache.
func copyOnce(ctx context.Context, src tier.Tier, anew bool, dst tier.Tier, name pagefile.Name, room *ledger.Room, commit func(tier.Upload) error) (copied, error) {
	blob, err := src.Open(ctx, name, anew)
	if err != nil {
		return copied{}, &copyError{side: src, err: err}
	}
	defer blob.Close()
	up, err := dst.Create(ctx, name)
	if err != nil {
		return copied{}, &copyError{side: dst, err: err}
	}
	defer func() { room.Wasted(up.Written()) }() // no effect after the upload became a file
	defer up.Abort()
	var writeErr error
	h, err := pagefile.Stream(ctx, blob, func(p []byte) error {
		writeErr = up.Write(ctx, p)
		return writeErr
	})
	if err == nil {
		err = h.CheckName(name)
	}
	if writeErr != nil {
		return copied{}, &copyError{side: dst, err: writeErr}
	}
	if err != nil {
		return copied{}, &copyError{side: src, err: err, read: blob.Info()}
	}
	if err := commit(up); err != nil {
		return copied{}, &copyError{side: dst, err: err}
	}
	return copied{header: h, from: blob.Info()}, nil
}

// copyError reports the side on which a copy failed.
type copyError struct {
	side  tier.Tier
	err   error
	read  tier.Info // the bad file that was read, if known
	first error     // of the read before, past which this one went; nil without
}

func (e *copyError) Error() string { return e.err.Error() }
func (e *copyError) Unwrap() error { return e.err }

// judged returns the file that a copy found bad, which may have been written or touched after
// info was read; info for an error without that file.
func judged(err error, info tier.Info) tier.Info {
	var side *copyError
	if errors.As(err, &side) && side.read.Name == info.Name {
		return side.read
	}
	return info
}
