package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// ErrNoRoom reports that the local tier has no room for a page that is read ahead.
var ErrNoRoom = errors.New("diskstore: no room to read ahead")

// Request copies a page that was read to the local tier in the background, from what was kept of it.
func (b *Mover) Request(page *Kept, at recency.Place) {
	info := page.Info()
	if !page.whole() { // of no use, and others need the room
		page.Drop()
	}
	budget := b.Local.Book.Budget
	if budget > 0 && pagefile.AlignUp(info.Bytes) > budget || !b.Promoting.Submit(info.Name, func(ctx context.Context) {
		defer page.Drop()
		b.Promote(ctx, keptTier{b.Remote.Tier, page}, info, at)
	}) {
		page.Drop()
	}
}

// Promote copies a page of from, the remote tier, to the local tier. After an error the page stays in the remote one
// alone.
func (b *Mover) Promote(ctx context.Context, from tier.Tier, info tier.Info, at recency.Place) {
	for _, name := range []pagefile.Name{info.Name, b.Pages.ExactOf(info.Name)} { // put since the look-up
		if ours, err := tier.Stat(ctx, b.Local.Tier, name); err == nil && !b.Ours.Bad.IsBad(ours) {
			return
		}
	}
	room, used, err := b.Above.Reserve(ctx, info.Bytes, at)
	if err != nil {
		return
	}
	defer room.Cancel()
	uses := min(recency.Uses(info.Used)+1, b.Chains.MostUses(ctx, at.Parent))
	if b.copy(ctx, from, info, room, recency.WithUses(used, uses)) == nil && info.Class == pagefile.ClassPage {
		b.Local.Book.Use(recency.Uses(info.Used), used.Sub(info.Used))
	}
}

// Ahead does as Promote, except that it makes no room for the page, keeps the page's
// recency, and reads through from, the remote tier. Ahead returns ErrNoRoom when the local tier has no
// room, tier.ErrNotFound without the page before it, or an error of either tier.
func (b *Mover) Ahead(ctx context.Context, from tier.Tier, info tier.Info) error {
	h, err := tier.ReadHeader(ctx, b.Remote.Tier, info.Name)
	if err != nil {
		return err
	}
	used := info.Used
	if h.Start > 0 {
		parent, ok := b.Chains.Link(ctx, h.Parent)
		if !ok {
			return fmt.Errorf("the page it continues is not stored: %w", tier.ErrNotFound)
		}
		if !parent.Used.IsZero() && parent.Used.Before(recency.Used(used, h.Start)) {
			used = recency.Of(parent.Used, h.Start)
		}
		used = recency.WithUses(used, min(recency.Uses(info.Used), b.Chains.MostUses(ctx, h.Parent)))
	}
	room, err := b.Above.Free(ctx, info.Bytes)
	if err != nil {
		return ErrNoRoom
	}
	defer room.Cancel()
	return b.copy(ctx, from, info, room, used)
}

// copy copies a page of the remote tier, from, into room of the local one.
func (b *Mover) copy(ctx context.Context, from tier.Tier, info tier.Info, room *ledger.Room, used time.Time) error {
	page, err := copyPage(ctx, from, b.Local.Tier, info.Name, room, func(up tier.Upload) error {
		return b.Local.Commit(ctx, up, room, used)
	})
	if err != nil {
		var side *copyError
		if errors.As(err, &side) && side.side != tier.Tier(b.Local.Tier) && tier.SameDamage(side.first, side.err) {
			b.Theirs.Condemn(ctx, judged(err, info), err)
		} else {
			b.Failed(err)
		}
		return err
	}
	b.Theirs.Copies.Note(page.from, page.header.Crc)
	b.Promoted()
	b.Above.Grown(ctx)
	return b.LinkUp(ctx, page.header)
}
