package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/checked"
	"github.com/kvtier/kvtier/diskstore/internal/counted"
	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// ErrNoRoom reports that the local tier has no room for a page that is read ahead.
var ErrNoRoom = errors.New("diskstore: no room to read ahead")

// UpOptions are the place of an Up in a store.
type UpOptions struct {
	Local        *counted.Tier
	Remote       tier.Tier
	Ours, Theirs *checked.Pages // of the local tier, and of the remote one
	Pages        *names.Pages   // of the store
	Chains       *recency.Chains
	Room         *room.Maker // in the local tier
	Queue        *work.Queue // of promotions

	// Failed is told errors of the local tier.
	Failed func(error)

	// Link makes a new file of the local tier known to look-ups.
	Link func(context.Context, *pagefile.Header) error

	// Promoted is told of each page that was copied.
	Promoted func()
}

// Up copies pages of the remote tier to the local one.
type Up struct{ opt UpOptions }

// NewUp returns an Up.
func NewUp(opt UpOptions) *Up { return &Up{opt: opt} }

// Request copies a page to the local tier in the background.
func (u *Up) Request(info tier.Info, at recency.Place) {
	if budget := u.opt.Local.Book.Budget; budget > 0 && pagefile.AlignUp(info.Bytes) > budget {
		return
	}
	u.opt.Queue.Submit(info.Name, func(ctx context.Context) { u.Promote(ctx, info, at) })
}

// Promote copies a page to the local tier. After an error the page stays in the remote one alone.
func (u *Up) Promote(ctx context.Context, info tier.Info, at recency.Place) {
	for _, name := range []pagefile.Name{info.Name, u.opt.Pages.ExactOf(info.Name)} { // put since the look-up
		if ours, err := tier.Stat(ctx, u.opt.Local.Tier, name); err == nil && !u.opt.Ours.Bad.IsBad(ours) {
			return
		}
	}
	room, used, err := u.opt.Room.Reserve(ctx, info.Bytes, at)
	if err != nil {
		return
	}
	defer room.Cancel()
	_ = u.copy(ctx, u.opt.Remote, info, room, used)
}

// Ahead does as Promote, except that it makes no room for the page, keeps the page's
// recency, and reads through from, the remote tier. Ahead returns ErrNoRoom when the local tier has no
// room, tier.ErrNotFound without the page before it, or an error of either tier.
func (u *Up) Ahead(ctx context.Context, from tier.Tier, info tier.Info) error {
	h, err := tier.ReadHeader(ctx, u.opt.Remote, info.Name)
	if err != nil {
		return err
	}
	used := info.Used
	if h.Start > 0 {
		parent, ok := u.opt.Chains.Link(ctx, h.Parent)
		if !ok {
			return fmt.Errorf("the page it continues is not stored: %w", tier.ErrNotFound)
		}
		if !parent.Used.IsZero() && parent.Used.Before(recency.Used(used, h.Start)) {
			used = recency.Of(parent.Used, h.Start)
		}
	}
	room, err := u.opt.Room.Free(ctx, info.Bytes)
	if err != nil {
		return ErrNoRoom
	}
	defer room.Cancel()
	return u.copy(ctx, from, info, room, used)
}

// copy copies a page of the remote tier, from, into room of the local one.
func (u *Up) copy(ctx context.Context, from tier.Tier, info tier.Info, room *ledger.Room, used time.Time) error {
	page, err := copyPage(ctx, from, u.opt.Local.Tier, info.Name, room, func(up tier.Upload) error {
		return u.opt.Local.Commit(ctx, up, room, used)
	})
	if err != nil {
		var side *copyError
		if errors.As(err, &side) && side.side != tier.Tier(u.opt.Local.Tier) {
			u.opt.Theirs.Condemn(ctx, judged(err, info), err)
		} else {
			u.opt.Failed(err)
		}
		return err
	}
	u.opt.Theirs.Copies.Note(page.from, page.header.Crc)
	u.opt.Promoted()
	u.opt.Room.Grown(ctx)
	return u.opt.Link(ctx, page.header)
}
