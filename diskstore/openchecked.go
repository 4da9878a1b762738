package diskstore

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// openChecked opens a page's file and runs check on it. One reader's failure is no
// proof: memory, a controller and a network lie as well. A file that check finds
// damaged is therefore opened anew, past what this machine has cached of it, and
// checked once more before anything is concluded. What fails twice is condemned.
//
// The result is open and for the caller to close.
func (s *Store) openChecked(ctx context.Context, id tierID, name pagefile.Name, check func(tier.Blob) error) (tier.Blob, error) {
	blob, info, err := s.openOnce(ctx, id, name, s.tier(id).Open, check)
	if !tier.Doubtful(err) && !(id == tierLocal && errors.Is(err, syscall.EIO)) {
		s.conclude(ctx, id, info, err)
		return blob, err
	}
	first := err
	blob, info, err = s.openOnce(ctx, id, name, s.tier(id).Reopen, check)
	switch {
	case err == nil && !errors.Is(first, tier.ErrStale):
		s.verdicts[id].readWrong(s.log, id, name, first)
	case errors.Is(err, tier.ErrStale): // it is replaced quicker than it can be read
		err = fmt.Errorf("%w (%w)", err, tier.ErrNotFound)
	}
	s.conclude(ctx, id, info, err)
	return blob, err
}

// conclude deals with how openChecked ended. info is that of the file, zero when it
// could not be opened.
func (s *Store) conclude(ctx context.Context, id tierID, info tier.Info, err error) {
	switch {
	case err == nil:
		s.verdicts[id].good()
	case info.Name == (pagefile.Name{}):
		s.noteTierError(id, err)
	default:
		s.condemn(ctx, id, info, err)
	}
}

// openOnce opens a file with open and runs check on it. After an error the file
// is closed.
func (s *Store) openOnce(ctx context.Context, id tierID, name pagefile.Name, open func(context.Context, pagefile.Name) (tier.Blob, error), check func(tier.Blob) error) (tier.Blob, tier.Info, error) {
	blob, err := open(ctx, name)
	if err != nil {
		return nil, tier.Info{}, err
	}
	info := blob.Info()
	if s.verdicts[id].isBad(info) {
		blob.Close()
		return nil, tier.Info{}, fmt.Errorf("it failed its check here before: %w", tier.ErrNotFound)
	}
	if err := check(blob); err != nil {
		blob.Close()
		return nil, info, err
	}
	return blob, info, nil
}

// checkedHeader is openChecked for a page's header.
func (s *Store) checkedHeader(ctx context.Context, id tierID, name pagefile.Name) (*pagefile.Header, error) {
	var h *pagefile.Header
	blob, err := s.openChecked(ctx, id, name, func(blob tier.Blob) (err error) {
		if h, err = pagefile.ReadHeader(ctx, blob); err != nil {
			return err
		}
		return h.CheckName(name)
	})
	if err != nil {
		return nil, err
	}
	blob.Close()
	return h, nil
}
