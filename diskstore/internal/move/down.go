package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/checked"
	"github.com/kvtier/kvtier/diskstore/internal/counted"
	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/reuse"
	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// Batch is the number of pages for which a collection of a full remote filesystem frees room at once.
const Batch = 8

// errSlow reports that the remote tier has not made room yet.
var errSlow = errors.New("diskstore: the remote tier takes long to make room")

// Options are the place of a Mover in a store.
type Options struct {
	Local, Remote *counted.Tier
	Ours, Theirs  *checked.Pages // of the local tier, and of the remote one
	Pages         *names.Pages   // of the store: the others move down exact
	Chains        *recency.Chains
	Codec         *pagefile.Codec
	Log           *slog.Logger

	// Below makes room in the remote tier, in the queue Collecting. Promoting is the queue of moves up.
	Below                 *room.Collector
	Collecting, Promoting *work.Queue

	// Resting reports whether the remote tier is down.
	Resting func() bool

	// Describe writes the manifest of a fingerprint to the remote tier. made tells that the file is
	// one that this store has made lossy.
	Describe func(ctx context.Context, fingerprint pagefile.Key, made bool) error

	// LinkUp and LinkDown make a new file of the local and of the remote tier known to look-ups, and
	// AddBranch one of the remote tier that may be known.
	LinkUp, LinkDown, AddBranch func(context.Context, *pagefile.Header) error

	// Lossy is told of each lossy file that was written, Promoted of each page that was copied up, and
	// Failed of errors of the local tier during that.
	Lossy    func(*pagefile.Header)
	Promoted func()
	Failed   func(error)

	Cold     pagefile.Cold // the encodings of K and V of lossy pages
	Pack     bool          // raw pages that move down exact are compressed
	Patience time.Duration // a move down waits as long for room, or half of room.Wait if that is longer
}

// Mover moves pages to the remote tier, and copies them to the local one. It is the room.Below of the
// local tier.
type Mover struct {
	Options
	Above *room.Maker // of room in the local tier

	kept    atomic.Int64 // bytes of all Kept
	making  atomic.Bool  // the remote tier makes room
	refused room.Moment  // the last time that the remote tier refused a page
	backoff room.Backoff // deleting pages for space on the remote filesystem

	mu     sync.Mutex
	moving map[pagefile.Name]chan struct{} // closed at the end of the move: of one page down, and of one through
}

// alone waits until no other goroutine moves a page, so that the page is sent once.
func (b *Mover) alone(ctx context.Context, name pagefile.Name) (leave func(), err error) {
	for {
		b.mu.Lock()
		other := b.moving[name]
		if other == nil {
			if b.moving == nil {
				b.moving = make(map[pagefile.Name]chan struct{})
			}
			mine := make(chan struct{})
			b.moving[name] = mine
			b.mu.Unlock()
			return func() {
				b.mu.Lock()
				defer b.mu.Unlock()
				delete(b.moving, name)
				close(mine)
			}, nil
		}
		b.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Refuses is that of room.Below.
func (b *Mover) Refuses(within time.Duration) bool {
	return b.Resting() || b.refused.Within(within, time.Now())
}

// Down is that of room.Below.
func (b *Mover) Down(ctx context.Context, info tier.Info) (room.Fate, tier.Info, error) {
	lossy, err := b.Move(ctx, info)
	switch {
	case err == nil:
		b.refused.Clear()
		if lossy {
			return room.MovedLossy, info, nil
		}
		return room.Moved, info, nil
	case ctx.Err() != nil:
		return room.Refused, info, ctx.Err() // the store closes, and the page stays in its tier
	case b.localSide(err, pagefile.ErrDamaged), b.localSide(err, pagefile.ErrMismatch):
		bad := judged(err, info)
		b.Ours.Condemn(ctx, bad, err)
		if b.Ours.Bad.IsBad(bad) || isForeign(err) {
			return room.Useless, bad, nil
		}
		return room.SetAside, bad, nil
	case errors.Is(err, tier.ErrNoSpace) && !b.backoff.Is(time.Now()), b.localSide(err, tier.ErrNotFound):
		return room.NoPlace, info, nil
	}
	b.refused.Note(time.Now())
	return room.Refused, info, nil
}

// Forward moves the recency of a file of the remote tier forward to the given one, unless another
// process has moved the recency further. A copy known to be good stays known.
func (b *Mover) Forward(ctx context.Context, name pagefile.Name, to time.Time) {
	if tier.Note(b.Remote.Tier, name, to) {
		b.Theirs.Copies.Touched(tier.Info{Name: name}, to)
		return
	}
	if was, now, err := recency.Forward(ctx, b.Remote.Tier, name, to, reuse.MostUses, b.Remote.Book.Use); err == nil {
		b.Theirs.Copies.Touched(was, now)
	}
}

// descent is a local page on its way to the remote tier.
type descent struct {
	info tier.Info
	held bool // the remote tier has a file that stands for the page

	// lossy tells that the local page is exact, and the file that stands for it is not.
	lossy bool

	// cold is the lossy file that is stored in place of an exact copy, and packed the compressed one of the same
	// rows; nil for a copy of the file.
	cold, packed *pagefile.Encoded
}

// file is the file that is stored, nil for a copy of the local one.
func (d descent) file() *pagefile.Encoded { return cmp.Or(d.cold, d.packed) }

// name is the name of the file that the remote tier gets.
func (d descent) name() pagefile.Name {
	if d.cold != nil {
		return d.cold.Header.Name()
	}
	return d.info.Name
}

// descend decides which file of a local page the remote tier gets: none where it has one that stands
// for the page, else the lossy file that Options.Cold asks for, else an exact copy, compressed where Options.Pack
// asks for that.
func (b *Mover) descend(ctx context.Context, info tier.Info) (descent, error) {
	d := descent{info: info}
	ours, err := tier.ReadHeader(ctx, b.Local.Tier, info.Name)
	if err != nil {
		return d, nil // the copy that follows finds the problem of the local file
	}
	if ours.Lossy() {
		// This page was made by a move down. A file that has taken the place of its copy is as new.
		d.held, err = b.held(ctx, info, info.Name, 0, func(theirs *pagefile.Header) bool {
			_, ok := ours.Layout.Within(theirs.Layout)
			return ok && theirs.Lossy()
		})
		return d, err
	}
	exact := func(theirs *pagefile.Header) bool { // a header has the checksums of all rows
		if theirs.Crc != ours.Crc && b.Pack && ours.Raw() && !theirs.Raw() {
			d.packed, err = b.makePacked(ctx, info)
		}
		return theirs.Crc == ours.Crc || d.packed != nil && theirs.Crc == d.packed.Header.Crc
	}
	bytes := info.Bytes
	if b.Pack {
		bytes = 0
	}
	if d.held, err = b.held(ctx, info, info.Name, bytes, exact); err != nil || d.held {
		return d, err
	}
	how, ok := b.coldOf(ours)
	if !ok {
		if b.Pack && ours.Raw() && d.packed == nil {
			d.packed, err = b.makePacked(ctx, info)
		}
		return d, err
	}
	// An exact file with other bytes is replaced by an exact copy: it would hide a lossy one.
	if _, err := tier.Stat(ctx, b.Remote.Tier, info.Name); !errors.Is(err, tier.ErrNotFound) {
		return d, err
	}
	lossy := func(theirs *pagefile.Header) bool { return theirs.Layout.Equal(ours.Layout) && how.Made(theirs) }
	if d.held, err = b.held(ctx, info, pagefile.ColdName(info.Name), 0, lossy); err == nil && !d.held {
		d.cold, err = b.makeCold(ctx, info, how)
	}
	d.lossy = d.held || d.cold != nil
	return d, err
}

// bytes is the length of the file that the remote tier gets.
func (d descent) bytes() int64 {
	if f := d.file(); f != nil {
		return f.Header.FileBytes
	}
	return d.info.Bytes
}

// lower makes the remote tier hold a local page, durable and whole. The local page may be
// removed only after lower has returned nil.
func (b *Mover) lower(ctx context.Context, d descent) error {
	if d.held {
		return nil
	}
	if err := b.Describe(ctx, d.name().Fingerprint, d.cold != nil); err != nil {
		return err
	}
	claim, err := b.Remote.Book.Reserve(ctx, d.bytes())
	if err != nil {
		return err
	}
	defer claim.Cancel()
	h, err := b.write(ctx, d, claim)
	if err != nil {
		return err
	}
	b.backoff.Clear()
	there, err := tier.Stat(ctx, b.Remote.Tier, h.Name())
	if err != nil {
		return err
	}
	if there.Bytes != d.bytes() {
		return fmt.Errorf("copy of page %v is %d bytes, want %d", d.info.Key, there.Bytes, d.bytes())
	}
	b.Theirs.Copies.Note(there, h.Crc)
	if err := b.LinkDown(ctx, h); err != nil {
		return err
	}
	if d.cold != nil {
		b.Lossy(h)
	}
	return nil
}

// write writes the file of a page that moves down into its room, durably, and returns the file's header.
func (b *Mover) write(ctx context.Context, d descent, claim *ledger.Room) (*pagefile.Header, error) {
	if f := d.file(); f != nil {
		return f.Header, b.Remote.Upload(ctx, f.Header.Name(), f, claim, d.info.Used)
	}
	page, err := copyPage(ctx, b.Local.Tier, b.Remote.Tier, d.info.Name, claim, func(up tier.Upload) error {
		return b.Remote.Commit(ctx, up, claim, d.info.Used)
	})
	return page.header, err
}

// held reports whether the remote tier has a file, at name, that may replace a local page: the local page is
// removed next. bytes is the length of such a file, 0 for any, and stands tells from the file's header
// whether it may. Of a file that this process wrote or checked lately, held reads the header, and of any
// other file every byte: reading takes about as long as writing another copy, and writes nothing. A damaged
// file goes to quarantine. A damaged file that stays in its place is an error and is not overwritten: this
// machine may be the cause.
func (b *Mover) held(ctx context.Context, info tier.Info, name pagefile.Name, bytes int64, stands func(theirs *pagefile.Header) bool) (bool, error) {
	there, err := tier.Stat(ctx, b.Remote.Tier, name)
	if err != nil || bytes > 0 && there.Bytes != bytes {
		return false, nil
	}
	theirs := b.knownCopy(ctx, there)
	if theirs == nil {
		theirs, err = b.goodCopy(ctx, name)
	}
	if err != nil || theirs == nil || !stands(theirs) {
		return false, err
	}
	// The process that made the copy visible may have died before the name was durable.
	if err := b.Remote.Tier.Persist(ctx, there.Name); err != nil {
		return false, err
	}
	uses := max(recency.Uses(there.Used), recency.Uses(info.Used))
	if used := recency.WithUses(tier.Later(there.Used, info.Used), uses); used.After(there.Used) {
		b.Forward(ctx, name, used)
	}
	err = b.AddBranch(ctx, theirs)
	return err == nil, err
}

// knownCopy returns the header of a file of the remote tier that this process knows to be good,
// and nil for any other file. knownCopy reads the header at once: a network share tells the present
// time of a file when the file is opened.
func (b *Mover) knownCopy(ctx context.Context, there tier.Info) *pagefile.Header {
	if _, known := b.Theirs.Copies.Knows(there); !known {
		return nil
	}
	theirs, now, err := b.Theirs.Header(ctx, there.Name)
	if err != nil {
		return nil
	}
	if crc, known := b.Theirs.Copies.Knows(now); !known || crc != theirs.Crc {
		return nil
	}
	return theirs
}

// goodCopy returns the header of a file of the remote tier after reading every byte, and nil for a
// file that is missing, damaged or another page's.
func (b *Mover) goodCopy(ctx context.Context, name pagefile.Name) (theirs *pagefile.Header, err error) {
	blob, err := b.Theirs.Open(ctx, name, func(blob tier.Blob) (err error) {
		if theirs, err = pagefile.Stream(ctx, blob, nil); err != nil {
			return err
		}
		return theirs.CheckName(name)
	})
	switch {
	case err == nil:
		defer blob.Close()
		b.Theirs.Copies.Note(blob.Info(), theirs.Crc)
		return theirs, nil
	case errors.Is(err, tier.ErrNotFound), tier.Doubtful(err):
		_, serr := tier.Stat(ctx, b.Remote.Tier, name)
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
	return nil, err
}

// Move demotes a page, and first makes room below if necessary. lossy reports that the page is exact, and
// lossy in the remote tier. Move returns tier.ErrNoSpace when the remote tier holds no page used earlier.
func (b *Mover) Move(ctx context.Context, info tier.Info) (lossy bool, err error) {
	leave, err := b.alone(ctx, info.Name)
	if err != nil {
		return false, err
	}
	defer leave()
	d, err := b.descend(ctx, info)
	if err != nil {
		return false, err
	}
	err = b.lower(ctx, d)
	if !errors.Is(err, tier.ErrNoSpace) && !errors.Is(err, ledger.ErrNotCounted) {
		return d.lossy, err
	}
	want := room.Demand{Room: d.bytes(), Before: info.Used}
	if vfs.IsNoSpace(err) {
		if b.backoff.Is(time.Now()) {
			return false, err
		}
		want.Disk = Batch * pagefile.AlignUp(d.bytes())
	}
	switch cerr := b.makeRoom(ctx, want); {
	case errors.Is(cerr, room.ErrExhausted):
		return false, err
	case cerr != nil:
		return false, cerr
	}
	if err = b.lower(ctx, d); want.Disk > 0 && vfs.IsNoSpace(err) {
		b.backoff.Note(time.Now())
	}
	return d.lossy, err
}

// makeRoom collects the remote tier in that tier's own queue, and waits a bounded time: a
// listing over a network takes minutes, and Puts wait for the local tier. While an earlier call
// goes on, makeRoom does not wait again.
func (b *Mover) makeRoom(ctx context.Context, want room.Demand) error {
	if b.making.Swap(true) {
		return errSlow
	}
	done := make(chan error, 1)
	type roomJob struct{}
	b.Collecting.Submit(roomJob{}, func(ctx context.Context) {
		err := b.Below.Collect(ctx, want)
		b.making.Store(false)
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-time.After(max(room.Wait/2, b.Patience)):
		return errSlow
	case <-ctx.Done():
		return ctx.Err()
	}
}

// localSide reports whether a demotion failed because of the local page, with an error of the given kind.
func (b *Mover) localSide(err, kind error) bool {
	var side *copyError
	return errors.As(err, &side) && side.side == b.Local.Tier && errors.Is(err, kind)
}

// isForeign reports whether a copy failed because another program wrote the page, in a format
// that this one does not read.
func isForeign(err error) bool {
	var wrongPlace *pagefile.Misplaced
	return errors.Is(err, pagefile.ErrMismatch) && !errors.As(err, &wrongPlace)
}

// coldExpandMost bounds the memory of making a page lossy by the file's length: rows that lossless
// encodings make smaller than that part become no smaller in a lossy one.
const coldExpandMost = 8

// coldOf returns how a local page becomes lossy when it moves down, and false for a page that
// moves down as it is: rows of other fingerprints may be of any type.
func (b *Mover) coldOf(h *pagefile.Header) (pagefile.Cold, bool) {
	return b.Cold, b.Pages.Cold && h.Fingerprint == b.Pages.Exact && !h.Lossy() &&
		int64(h.Layout.Size()) <= coldExpandMost*h.FileBytes
}

// makeCold returns the lossy file of a local page. The result is nil, for an exact copy, when the
// lossy file would take as much disk space, and when it cannot be made: of a damaged page, for
// example, which the copy then finds. The error is that of ctx.
func (b *Mover) makeCold(ctx context.Context, info tier.Info, how pagefile.Cold) (*pagefile.Encoded, error) {
	return b.make(ctx, info, func(blob tier.Blob, h *pagefile.Header) (*pagefile.Encoded, error) {
		if _, ok := b.coldOf(h); !ok {
			return nil, nil
		}
		e, err := pagefile.EncodeCold(ctx, blob, h, b.Codec, how)
		if err != nil {
			b.Log.Debug("kv page moves down exact, it could not be made lossy", "page", info.Key.String(), "error", err)
			return nil, err
		}
		if !e.Header.Lossy() {
			return nil, nil
		}
		return e, nil
	})
}

// makePacked returns the compressed file of a raw local page. The result is nil as that of makeCold.
func (b *Mover) makePacked(ctx context.Context, info tier.Info) (*pagefile.Encoded, error) {
	return b.make(ctx, info, func(blob tier.Blob, h *pagefile.Header) (*pagefile.Encoded, error) {
		return pagefile.EncodePacked(ctx, blob, h, b.Codec)
	})
}

// make returns the file that encode makes of a local page, if it takes less disk space. The error is that of ctx.
func (b *Mover) make(ctx context.Context, info tier.Info, encode func(tier.Blob, *pagefile.Header) (*pagefile.Encoded, error)) (*pagefile.Encoded, error) {
	blob, err := b.Local.Tier.Open(ctx, info.Name, false)
	if err != nil {
		return nil, ctx.Err()
	}
	defer blob.Close()
	h, err := pagefile.ReadHeader(ctx, blob)
	if err != nil || h.CheckName(info.Name) != nil {
		return nil, ctx.Err()
	}
	e, err := encode(blob, h)
	if err != nil || e == nil || pagefile.AlignUp(e.Header.FileBytes) >= pagefile.AlignUp(blob.Info().Bytes) {
		return nil, ctx.Err()
	}
	return e, nil
}
