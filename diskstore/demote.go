package diskstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// demote makes the remote tier hold a local page, durable and whole. The local page may be
// removed only after demote has returned nil.
func (s *Store) demote(ctx context.Context, info tier.Info) error {
	held, err := s.heldBelow(ctx, info)
	if err != nil || held {
		return err
	}
	if err := s.copyManifest(ctx, info.Fingerprint); err != nil {
		return err
	}
	room, err := s.remote.book.Reserve(ctx, info.Bytes)
	if err != nil {
		return err
	}
	defer room.Cancel()
	page, err := copyPage(ctx, s.disk, s.guard, info.Name, room, func(up tier.Upload) error {
		return s.remote.commitTo(ctx, up, room, info.Used)
	})
	if err != nil {
		return err
	}
	s.remote.futile.clear()
	there, err := s.guard.Stat(ctx, info.Name)
	if err != nil {
		return err
	}
	if there.Bytes != info.Bytes {
		return fmt.Errorf("copy of page %v is %d bytes, want %d", info.Key, there.Bytes, info.Bytes)
	}
	s.remote.copies.good(there, page.header.Crc)
	s.remote.linkIn(ctx, page.header)
	return nil
}

// heldBelow reports whether the remote tier has a copy that may replace a local page: the local
// page is removed next. Of a copy that this process wrote or checked lately, heldBelow reads the
// header, and of any other copy every byte: reading takes about as long as writing another copy,
// and writes nothing. A damaged copy goes to quarantine. A damaged copy that stays in its place
// is an error and is not overwritten: this machine may be the cause.
func (s *Store) heldBelow(ctx context.Context, info tier.Info) (bool, error) {
	there, err := s.guard.Stat(ctx, info.Name)
	if err != nil || there.Bytes != info.Bytes {
		return false, nil
	}
	ours, err := s.headerOf(ctx, s.disk, info.Name)
	if err != nil {
		return false, nil // the copy that follows finds the problem of the local file
	}
	if !s.knownCopy(ctx, there, ours) {
		if good, err := s.goodCopy(ctx, info.Name, ours); err != nil || !good {
			return false, err
		}
	}
	// The process that made the copy visible may have died before the name was durable.
	if err := s.remote.persist(ctx, tier.Committed{Info: there}); err != nil {
		return false, err
	}
	if there.Used.Before(info.Used) {
		s.remote.forwardCopy(ctx, info.Name, info.Used)
	}
	if !ours.Tail() {
		s.remote.addBranch(ctx, ours)
	}
	return true, nil
}

// knownCopy reports whether a file of the remote tier is one that this process knows to be good,
// with the header ours. knownCopy reads the header at once: a network share tells the present
// time of a file when the file is opened.
func (s *Store) knownCopy(ctx context.Context, there tier.Info, ours *pagefile.Header) bool {
	if !s.remote.copies.isGood(there, ours.Crc) {
		return false
	}
	theirs, now, err := s.remote.checkedHeader(ctx, there.Name)
	return err == nil && theirs.Crc == ours.Crc && s.remote.copies.isGood(now, ours.Crc)
}

// goodCopy reports whether the remote tier has a copy of the page with the header ours, after
// reading every byte.
func (s *Store) goodCopy(ctx context.Context, name pagefile.Name, ours *pagefile.Header) (bool, error) {
	theirs, err := s.verifyCopy(ctx, name)
	switch {
	case errors.Is(err, tier.ErrNotFound), tier.Doubtful(err):
		_, serr := s.guard.Stat(ctx, name)
		switch {
		case errors.Is(serr, tier.ErrNotFound):
			return false, nil
		case serr != nil:
			return false, serr
		}
		return false, fmt.Errorf("replace the copy of page %v in the remote tier, which failed its check here and stays in its place: %w", name.Key, err)
	case errors.Is(err, pagefile.ErrMismatch):
		return false, nil
	case err != nil:
		return false, err
	}
	return theirs.Crc == ours.Crc, nil // a header has the checksums of all rows
}

// verifyCopy reads a page of the remote tier and checks every byte.
func (s *Store) verifyCopy(ctx context.Context, name pagefile.Name) (*pagefile.Header, error) {
	var h *pagefile.Header
	blob, err := s.remote.openChecked(ctx, name, func(blob tier.Blob) (err error) {
		if h, err = pagefile.Stream(ctx, blob, nil); err != nil {
			return err
		}
		return h.CheckName(name)
	})
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	s.remote.copies.good(blob.Info(), h.Crc)
	return h, nil
}
