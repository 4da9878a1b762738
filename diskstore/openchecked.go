package diskstore

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// openChecked opens a page's file and runs check on it. One failed read proves nothing,
// because memory, controllers and networks fail as well. So a file that check finds damaged is
// opened again, past this machine's cache, and checked again. A file that fails twice is
// condemned.
//
// The caller closes the returned Blob.
func (lv *level) openChecked(ctx context.Context, name pagefile.Name, check func(tier.Blob) error) (tier.Blob, error) {
	blob, info, err := lv.openOnce(ctx, name, lv.tier.Open, check)
	if notUsed(err) || !tier.Doubtful(err) && !(lv == lv.s.local && errors.Is(err, syscall.EIO)) {
		lv.conclude(ctx, info, err)
		return blob, err
	}
	first := err
	blob, info, err = lv.openOnce(ctx, name, lv.tier.Reopen, check)
	switch {
	case err == nil && !errors.Is(first, tier.ErrStale):
		lv.verdicts.readWrong(lv.s.log, lv.name, name, first)
	case errors.Is(err, tier.ErrStale): // the file is replaced faster than it can be read
		err = fmt.Errorf("%w (%w)", err, tier.ErrNotFound)
	}
	lv.conclude(ctx, info, err)
	return blob, err
}

// conclude handles the result of openChecked. info describes the file, and is zero when the
// file could not be opened.
func (lv *level) conclude(ctx context.Context, info tier.Info, err error) {
	switch {
	case err == nil:
		lv.verdicts.good()
	case notUsed(err): // the file is good so far
	case info.Name == (pagefile.Name{}):
		lv.noteTierError(err)
	default:
		lv.condemn(ctx, info, err)
	}
}

// openOnce opens a file with open and runs check on it. After an error the file is closed.
func (lv *level) openOnce(ctx context.Context, name pagefile.Name, open func(context.Context, pagefile.Name) (tier.Blob, error), check func(tier.Blob) error) (tier.Blob, tier.Info, error) {
	blob, err := open(ctx, name)
	if err != nil {
		return nil, tier.Info{}, err
	}
	info := blob.Info()
	if lv.verdicts.isBad(info) {
		blob.Close()
		return nil, tier.Info{}, fmt.Errorf("it failed its check here before: %w", tier.ErrNotFound)
	}
	if err := check(blob); err != nil {
		blob.Close()
		return nil, info, err
	}
	return blob, info, nil
}

// checkedHeader does as openChecked for a page's header, and describes the file.
func (lv *level) checkedHeader(ctx context.Context, name pagefile.Name) (*pagefile.Header, tier.Info, error) {
	var h *pagefile.Header
	blob, err := lv.openChecked(ctx, name, func(blob tier.Blob) (err error) {
		if h, err = pagefile.ReadHeader(ctx, blob); err != nil {
			return err
		}
		return h.CheckName(name)
	})
	if err != nil {
		return nil, tier.Info{}, err
	}
	defer blob.Close()
	return h, blob.Info(), nil
}
