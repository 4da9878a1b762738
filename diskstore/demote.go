package diskstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// descent is a local page on its way to the remote tier.
type descent struct {
	info tier.Info
	held bool // the remote tier has a file that stands for the page

	// lossy tells that the local page is exact, and the file that stands for it is not.
	lossy bool

	// cold is the lossy file that is stored in place of an exact copy; nil for an exact copy.
	cold *pagefile.Encoded
}

// descend decides which file of a local page the remote tier gets: none where it has one that stands
// for the page, else the lossy file that Options.Cold asks for, else an exact copy.
func (s *Store) descend(ctx context.Context, info tier.Info) (descent, error) {
	d := descent{info: info}
	ours, err := tier.ReadHeader(ctx, s.disk, info.Name)
	if err != nil {
		return d, nil // the copy that follows finds the problem of the local file
	}
	if ours.Lossy() {
		// This page was made by a move down. A file that has taken the place of its copy is as new.
		d.held, err = s.heldBelow(ctx, info, info.Name, 0, func(theirs *pagefile.Header) bool {
			_, ok := ours.Layout.Within(theirs.Layout)
			return ok && theirs.Lossy()
		})
		return d, err
	}
	exact := func(theirs *pagefile.Header) bool { return theirs.Crc == ours.Crc } // a header has the checksums of all rows
	if d.held, err = s.heldBelow(ctx, info, info.Name, info.Bytes, exact); err != nil || d.held {
		return d, err
	}
	how, ok := s.coldOf(ours)
	if !ok {
		return d, nil
	}
	// An exact file with other bytes is replaced by an exact copy: it would hide a lossy one.
	if _, err := s.guard.Stat(ctx, info.Name); !errors.Is(err, tier.ErrNotFound) {
		return d, err
	}
	lossy := func(theirs *pagefile.Header) bool { return theirs.Layout.Equal(ours.Layout) && how.Made(theirs) }
	if d.held, err = s.heldBelow(ctx, info, pagefile.ColdName(info.Name), 0, lossy); err == nil && !d.held {
		d.cold, err = s.makeCold(ctx, info, how)
	}
	d.lossy = d.held || d.cold != nil
	return d, err
}

// bytes is the length of the file that the remote tier gets.
func (d descent) bytes() int64 {
	if d.cold != nil {
		return d.cold.Header.FileBytes
	}
	return d.info.Bytes
}

// lower makes the remote tier hold a local page, durable and whole. The local page may be
// removed only after lower has returned nil.
func (s *Store) lower(ctx context.Context, d descent) error {
	if d.held {
		return nil
	}
	if err := s.manifestBelow(ctx, d); err != nil {
		return err
	}
	room, err := s.remote.book.Reserve(ctx, d.bytes())
	if err != nil {
		return err
	}
	defer room.Cancel()
	h, err := s.writeBelow(ctx, d, room)
	if err != nil {
		return err
	}
	s.remote.futile.clear()
	there, err := s.guard.Stat(ctx, h.Name())
	if err != nil {
		return err
	}
	if there.Bytes != d.bytes() {
		return fmt.Errorf("copy of page %v is %d bytes, want %d", d.info.Key, there.Bytes, d.bytes())
	}
	s.remote.checked.Copies.Good(there, h.Crc)
	if err := s.remote.linkIn(ctx, h); err != nil {
		return err
	}
	if d.cold != nil {
		s.counts.lossyPages.Add(1)
		s.counts.lossyRaw.Add(uint64(h.Layout.Size()))
		s.counts.lossyBytes.Add(uint64(h.FileBytes))
	}
	return nil
}

// writeBelow writes the file of a page that moves down into its room, durably, and returns the
// file's header.
func (s *Store) writeBelow(ctx context.Context, d descent, room *ledger.Room) (*pagefile.Header, error) {
	if d.cold != nil {
		return d.cold.Header, s.remote.files.Upload(ctx, d.cold.Header.Name(), d.cold, room, d.info.Used)
	}
	page, err := copyPage(ctx, s.disk, s.guard, d.info.Name, room, func(up tier.Upload) error {
		return s.remote.files.Commit(ctx, up, room, d.info.Used)
	})
	return page.header, err
}

// heldBelow reports whether the remote tier has a file, at name, that may replace a local page: the
// local page is removed next. bytes is the length of such a file, 0 for any, and stands tells from
// the file's header whether it may. Of a file that
// this process wrote or checked lately, heldBelow reads the header, and of any other file every
// byte: reading takes about as long as writing another copy, and writes nothing. A damaged file goes
// to quarantine. A damaged file that stays in its place is an error and is not overwritten: this
// machine may be the cause.
func (s *Store) heldBelow(ctx context.Context, info tier.Info, name pagefile.Name, bytes int64, stands func(theirs *pagefile.Header) bool) (bool, error) {
	there, err := s.guard.Stat(ctx, name)
	if err != nil || bytes > 0 && there.Bytes != bytes {
		return false, nil
	}
	theirs := s.knownCopy(ctx, there)
	if theirs == nil {
		theirs, err = s.goodCopy(ctx, name)
	}
	if err != nil || theirs == nil || !stands(theirs) {
		return false, err
	}
	// The process that made the copy visible may have died before the name was durable.
	if err := s.remote.files.Persist(ctx, tier.Committed{Info: there}); err != nil {
		return false, err
	}
	if there.Used.Before(info.Used) {
		s.remote.forwardCopy(ctx, name, info.Used)
	}
	_, err = s.remote.addBranch(ctx, theirs)
	return err == nil, err
}

// knownCopy returns the header of a file of the remote tier that this process knows to be good,
// and nil for any other file. knownCopy reads the header at once: a network share tells the present
// time of a file when the file is opened.
func (s *Store) knownCopy(ctx context.Context, there tier.Info) *pagefile.Header {
	if !s.remote.checked.Copies.Knows(there) {
		return nil
	}
	theirs, now, err := s.remote.checked.Header(ctx, there.Name)
	if err != nil || !s.remote.checked.Copies.IsGood(now, theirs.Crc) {
		return nil
	}
	return theirs
}

// goodCopy returns the header of a file of the remote tier after reading every byte, and nil for a
// file that is missing, damaged or another page's.
func (s *Store) goodCopy(ctx context.Context, name pagefile.Name) (*pagefile.Header, error) {
	theirs, err := s.verifyCopy(ctx, name)
	switch {
	case errors.Is(err, tier.ErrNotFound), tier.Doubtful(err):
		_, serr := s.guard.Stat(ctx, name)
		switch {
		case errors.Is(serr, tier.ErrNotFound):
			return nil, nil
		case serr != nil:
			return nil, serr
		}
		return nil, fmt.Errorf("replace the copy of page %v in the remote tier, which failed its check here and stays in its place: %w", name.Key, err)
	case errors.Is(err, pagefile.ErrMismatch):
		return nil, nil
	}
	return theirs, err
}

// verifyCopy reads a page of the remote tier and checks every byte.
func (s *Store) verifyCopy(ctx context.Context, name pagefile.Name) (*pagefile.Header, error) {
	var h *pagefile.Header
	blob, err := s.remote.checked.Open(ctx, name, func(blob tier.Blob) (err error) {
		if h, err = pagefile.Stream(ctx, blob, nil); err != nil {
			return err
		}
		return h.CheckName(name)
	})
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	s.remote.checked.Copies.Good(blob.Info(), h.Crc)
	return h, nil
}
