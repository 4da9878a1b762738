package diskstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// demoteRoom is the number of pages for which a collection of a full remote filesystem frees room at
// once.
const demoteRoom = 8

// errSlowBelow reports that the remote tier has not made room yet.
var errSlowBelow = errors.New("diskstore: the remote tier takes long to make room")

// below is the remote tier, as the local one sees it.
type below struct{ s *Store }

func (b below) Refuses(within time.Duration) bool {
	return b.s.guard.Breaker.Resting() || b.s.refused.Within(within, time.Now())
}

func (b below) Down(ctx context.Context, info tier.Info) (room.Fate, tier.Info, error) {
	s := b.s
	lossy, err := s.moveDown(ctx, info)
	switch {
	case err == nil:
		s.refused.Clear()
		if lossy {
			return room.MovedLossy, info, nil
		}
		return room.Moved, info, nil
	case ctx.Err() != nil:
		return room.Refused, info, ctx.Err() // the store closes, and the page stays in its tier
	case s.localSide(err, pagefile.ErrDamaged), s.localSide(err, pagefile.ErrMismatch):
		bad := judged(err, info)
		s.local.checked.Condemn(ctx, bad, err)
		if s.local.checked.Verdicts.IsBad(bad) || isForeign(err) {
			return room.Useless, bad, nil
		}
		return room.SetAside, bad, nil
	case errors.Is(err, tier.ErrNoSpace) && !s.futileBelow.Is(time.Now()), s.localSide(err, tier.ErrNotFound):
		return room.NoPlace, info, nil
	}
	s.refused.Note(time.Now())
	return room.Refused, info, nil
}

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
	claim, err := s.remote.book.Reserve(ctx, d.bytes())
	if err != nil {
		return err
	}
	defer claim.Cancel()
	h, err := s.writeBelow(ctx, d, claim)
	if err != nil {
		return err
	}
	s.futileBelow.Clear()
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
func (s *Store) writeBelow(ctx context.Context, d descent, claim *ledger.Room) (*pagefile.Header, error) {
	if d.cold != nil {
		return d.cold.Header, s.remote.files.Upload(ctx, d.cold.Header.Name(), d.cold, claim, d.info.Used)
	}
	page, err := copyPage(ctx, s.disk, s.guard, d.info.Name, claim, func(up tier.Upload) error {
		return s.remote.files.Commit(ctx, up, claim, d.info.Used)
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

// isForeign reports whether a copy failed because another program wrote the page, in a format
// that this one does not read.
func isForeign(err error) bool {
	var wrongPlace *pagefile.Misplaced
	return errors.Is(err, pagefile.ErrMismatch) && !errors.As(err, &wrongPlace)
}

// moveDown demotes a page, and first makes room below if necessary. lossy reports that the page is
// exact, and lossy in the remote tier. moveDown returns tier.ErrNoSpace when the remote tier holds no
// page used earlier.
func (s *Store) moveDown(ctx context.Context, info tier.Info) (lossy bool, err error) {
	d, err := s.descend(ctx, info)
	if err != nil {
		return false, err
	}
	err = s.lower(ctx, d)
	if !errors.Is(err, tier.ErrNoSpace) && !errors.Is(err, ledger.ErrNotCounted) {
		return d.lossy, err
	}
	want := room.Demand{Room: d.bytes(), Before: info.Used}
	if vfs.IsNoSpace(err) {
		if s.futileBelow.Is(time.Now()) {
			return false, err
		}
		want.Disk = demoteRoom * pagefile.AlignUp(d.bytes())
	}
	switch cerr := s.makeRoomBelow(ctx, want); {
	case errors.Is(cerr, room.ErrExhausted):
		return false, err
	case cerr != nil:
		return false, cerr
	}
	if err = s.lower(ctx, d); want.Disk > 0 && vfs.IsNoSpace(err) {
		s.futileBelow.Note(time.Now())
	}
	return d.lossy, err
}

// makeRoomBelow collects the remote tier in that tier's own queue, and waits a bounded time: a
// listing over a network takes minutes, and Puts wait for the local tier. While an earlier call
// goes on, makeRoomBelow does not wait again.
func (s *Store) makeRoomBelow(ctx context.Context, want room.Demand) error {
	if s.roomBelow.Swap(true) {
		return errSlowBelow
	}
	done := make(chan error, 1)
	type roomJob struct{}
	s.remote.collecting.Submit(roomJob{}, func(ctx context.Context) {
		err := s.remote.room.Collect(ctx, want)
		s.roomBelow.Store(false)
		done <- err
	})
	patience := time.NewTimer(max(room.Wait/2, s.opt.RemoteTimeout))
	defer patience.Stop()
	select {
	case err := <-done:
		return err
	case <-patience.C:
		return errSlowBelow
	case <-ctx.Done():
		return ctx.Err()
	}
}

// localSide reports whether a demotion failed because of the local page, with an error of the
// given kind.
func (s *Store) localSide(err, kind error) bool {
	var side *copyError
	return errors.As(err, &side) && side.side == s.disk && errors.Is(err, kind)
}
