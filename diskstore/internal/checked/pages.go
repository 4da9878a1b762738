package checked

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Options are the place of Pages in a store.
type Options struct {
	Name string // of the tier, for the log
	Far  bool   // the remote tier, which other machines use as well
	Log  *slog.Logger
	Now  func() time.Time

	// Quarantine moves a file to quarantine, and Gone is told of one that was moved.
	Quarantine func(ctx context.Context, info tier.Info, reason string) (bool, error)
	Gone       func(tier.Info)

	// Failed is told errors of the tier.
	Failed func(error)

	// Counts of files that were found damaged, to be another page, and unreadable.
	Damaged, Mismatched, Unreadable *atomic.Uint64
}

// Pages reads the pages of one tier.
type Pages struct {
	Bad    *BadFiles
	Copies *Seen // files every byte of which this process has written or checked

	tier tier.Tier
	opt  Options
}

// New returns the pages of t.
func New(t tier.Tier, opt Options) *Pages {
	return &Pages{Bad: NewBadFiles(opt.Far, opt.Now), Copies: newSeen(CopyLife, MaxCopies, opt.Now), tier: t, opt: opt}
}

// UseError is an error of the code that uses a page's rows: it says nothing of the file.
type UseError struct{ Err error }

func (e *UseError) Error() string { return e.Err.Error() }
func (e *UseError) Unwrap() error { return e.Err }

// NotUsed reports a UseError.
func NotUsed(err error) bool {
	var e *UseError
	return errors.As(err, &e)
}

// Open opens a page's file and runs check on it. One failed read proves nothing, because memory, controllers
// and networks fail as well. So a file that check finds damaged is opened again, past this machine's cache,
// and checked again. A file that fails twice is condemned; in a far tier only where both find the same damage, and
// else it counts as not stored here.
//
// The caller closes the returned Blob.
func (p *Pages) Open(ctx context.Context, name pagefile.Name, check func(tier.Blob) error) (tier.Blob, error) {
	blob, info, err := p.openOnce(ctx, name, false, check)
	if NotUsed(err) || !tier.Doubtful(err) && !(!p.opt.Far && errors.Is(err, syscall.EIO)) {
		p.conclude(ctx, info, err)
		return blob, err
	}
	first := err
	blob, info, err = p.openOnce(ctx, name, true, check)
	switch {
	case err == nil && !errors.Is(first, tier.ErrStale):
		p.Bad.readWrong(p.opt.Log, p.opt.Name, name, first)
	case p.opt.Far && !tier.SameDamage(first, err): // others may read it well
		if info.Name != (pagefile.Name{}) {
			p.Bad.Note(info, 0)
		}
		err = fmt.Errorf("two reads differ: %v, then %v", first, err)
	case errors.Is(err, tier.ErrStale): // the file is replaced faster than it can be read
		err = fmt.Errorf("%w (%w)", err, tier.ErrNotFound)
	}
	p.conclude(ctx, info, err)
	return blob, err
}

// conclude handles the result of Open. info describes the file, and is zero when the
// file could not be opened.
func (p *Pages) conclude(ctx context.Context, info tier.Info, err error) {
	switch {
	case err == nil:
		p.Bad.good()
	case NotUsed(err): // the file is good so far
	case info.Name == (pagefile.Name{}):
		p.opt.Failed(err)
	default:
		p.Condemn(ctx, info, err)
	}
}

// openOnce opens a file, with anew past the cache, and runs check on it. After an error the file is closed.
func (p *Pages) openOnce(ctx context.Context, name pagefile.Name, anew bool, check func(tier.Blob) error) (tier.Blob, tier.Info, error) {
	blob, err := p.tier.Open(ctx, name, anew)
	if err != nil {
		return nil, tier.Info{}, err
	}
	info := blob.Info()
	if p.Bad.IsBad(info) {
		blob.Close()
		return nil, tier.Info{}, fmt.Errorf("it failed its check here before: %w", tier.ErrNotFound)
	}
	if err := check(blob); err != nil {
		blob.Close()
		return nil, info, err
	}
	return blob, info, nil
}

// Header does as Open for a page's header, and describes the file.
func (p *Pages) Header(ctx context.Context, name pagefile.Name) (*pagefile.Header, tier.Info, error) {
	var h *pagefile.Header
	blob, err := p.Open(ctx, name, func(blob tier.Blob) (err error) {
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

// Condemn handles a file that could not be used because of err, also when read past the cache. A damaged
// file, or one that is not the page of its name, goes to quarantine, so that the page can be stored again.
// The file stays, and counts as not stored here, when quarantine is full or when this process has condemned
// so many files that the process is more likely to be wrong. A good page that only differs from the caller's
// description stays as well: the caller may be wrong.
func (p *Pages) Condemn(ctx context.Context, info tier.Info, err error) {
	reason := ""
	var wrongPlace *pagefile.Misplaced
	switch {
	case errors.As(err, &wrongPlace):
		p.opt.Mismatched.Add(1)
		reason = "misplaced"
	case errors.Is(err, pagefile.ErrMismatch):
		p.opt.Mismatched.Add(1)
		return
	case errors.Is(err, pagefile.ErrDamaged):
		p.opt.Damaged.Add(1)
		reason = "damaged"
	case !p.opt.Far && errors.Is(err, syscall.EIO):
		// A bad sector stays bad; a remote mount may recover.
		p.opt.Unreadable.Add(1)
		reason = "unreadable"
	default:
		p.Copies.Forget(info.Name) // the file may stay unreadable
		p.opt.Failed(err)
		return
	}
	p.Copies.Forget(info.Name)
	v := p.Bad
	ok, enough := v.MayCondemn()
	if enough {
		p.opt.Log.Warn("kv pages fail their check too often on this machine, they stay in their place: check its memory, disk and network, then run kvtier check",
			"page", info.Key.String(), "tier", p.opt.Name, "why", err, "failed", v.limit+1, "in", condemnHour)
	}
	if !ok {
		v.Note(info, 0)
		return
	}
	moved, qerr := p.opt.Quarantine(ctx, info, reason)
	if qerr != nil {
		v.Note(info, 0)
	}
	if moved {
		p.opt.Gone(info)
	}
	if moved || qerr != nil {
		p.opt.Log.Warn("kv page is not usable and will be computed again", "page", info.Key.String(), "tier", p.opt.Name,
			"why", err, "quarantined", moved)
	}
}
