package diskstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/move"
	"github.com/kvtier/kvtier/diskstore/internal/ram"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/priority"
)

// aheadTime bounds ReadAhead: later requests read their pages sooner themselves.
const aheadTime = 2 * time.Minute

// Ahead is the result of ReadAhead.
type Ahead struct {
	Pages    int   // full pages and tails
	Bytes    int64 // bytes in the memory where the pages are now
	Promoted int   // of Pages, copied from the remote tier
	RAM      bool  // the pages are decoded in Options.RAM, not files in the system's page cache
}

// ReadAhead reads the most recently used pages, so that the first Reads after a start come from
// memory: with Options.RAM as decoded pages, otherwise as files, which the operating system keeps
// until it needs the memory.
//
// The local tier's pages come first, each conversation's from its beginning on. Pages that
// only the remote tier holds are then copied to the local tier, into free room. No page is
// evicted for a page that is read ahead, and pages read ahead do not count as used.
//
// ReadAhead reads at most Options.ReadAheadBytes and runs at most 2 minutes, at a low priority where the
// system has priorities, and waits while Reads and Puts run. A second call does nothing. ReadAhead returns
// the pages read so far together with tier.ErrClosed, ctx's error or an error of counting the local tier.
func (r *Recent) ReadAhead(ctx context.Context) (Ahead, error) {
	ctx, leave, err := r.life.Enter(ctx)
	if err != nil {
		return Ahead{}, err
	}
	defer leave()
	if r.aheadBytes == 0 {
		return Ahead{}, nil
	}
	limited, cancel := context.WithTimeout(ctx, aheadTime)
	defer cancel()
	reader := &aheadReader{Recent: r, left: r.aheadBytes, did: Ahead{RAM: !r.ram.off()}}
	done := make(chan error, 1)
	go func() { // a goroutine of its own, which ends with the lowered priority
		priority.Lower()
		done <- reader.run(limited)
	}()
	err = <-done
	if limited.Err() != nil && ctx.Err() == nil {
		err = nil // the time is over
	}
	return reader.did, err
}

// errEnough ends reading ahead: the next page has no room.
var errEnough = move.ErrNoRoom

type aheadReader struct {
	*Recent
	left int64 // bytes
	step []byte
	did  Ahead
}

func (r *aheadReader) run(ctx context.Context) error {
	for _, lv := range r.tiers {
		if _, err := lv.files.AwaitFirst(ctx, lv.counting...); err != nil {
			if lv.far && ctx.Err() == nil {
				return nil
			}
			return fmt.Errorf("read ahead in %s: %w", lv.where, err)
		}
		for _, info := range lv.files.First.TakeRecent() {
			err := r.read(ctx, lv, info)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(err, errEnough) || errors.Is(err, tier.ErrTierDown) {
				break
			}
		}
	}
	return nil
}

// read reads one page ahead. Errors other than errEnough concern this page alone: the page may
// be gone, or the next Read of the page finds its damage.
func (r *aheadReader) read(ctx context.Context, lv *level, info tier.Info) error {
	if err := r.traffic.StandBack(ctx); err != nil {
		return err
	}
	if info.Bytes > r.left {
		return errEnough
	}
	if info.Fingerprint == r.pages.Lossy {
		if _, err := tier.Stat(ctx, r.tiers[0].tier, r.pages.ExactOf(info.Name)); err == nil {
			return nil // nobody asks for the lossy page
		}
	}
	promoted := false
	if lv.far {
		if _, err := tier.Stat(ctx, r.tiers[0].tier, info.Name); err == nil {
			return nil // read already, or not recent enough
		}
		err := r.mover.Ahead(ctx, yieldingTier{lv.tier, r.traffic}, info)
		promoted = err == nil
		switch {
		case promoted:
			lv = r.tiers[0]
		case r.ram.off() || !errors.Is(err, errEnough):
			return err
		}
	}
	bytes, err := info.Bytes, error(nil)
	switch {
	case !r.ram.off():
		bytes, err = r.decode(ctx, lv, info)
	case !promoted: // a file just written is in the page cache already
		bytes, err = r.cache(ctx, lv, info)
	}
	if err != nil {
		return err
	}
	r.left -= bytes
	r.did.Pages++
	r.did.Bytes += bytes
	r.counts.aheadPages.Add(1)
	r.counts.aheadBytes.Add(uint64(bytes))
	r.ahead.note(info.Name)
	if promoted {
		r.did.Promoted++
	}
	return nil
}

// cache reads a file into the operating system's page cache and returns the file's bytes. Read
// checks the content later.
func (r *aheadReader) cache(ctx context.Context, lv *level, info tier.Info) (int64, error) {
	file, err := lv.tier.Open(ctx, info.Name, false)
	if err != nil {
		lv.noteTierError(err)
		return 0, err
	}
	defer file.Close()
	size := file.Info().Bytes
	if size > r.left {
		return 0, errEnough
	}
	if r.step == nil {
		r.step = make([]byte, pagefile.StepBytes)
	}
	blob := yieldingBlob{file, r.traffic}
	for off := int64(0); off < size; off += pagefile.StepBytes {
		if err := blob.ReadAt(ctx, r.step[:min(pagefile.StepBytes, size-off)], off); err != nil {
			lv.noteTierError(err)
			return 0, err
		}
	}
	return size, nil
}

// decode checks a page, keeps the page in memory behind all other pages, and returns the bytes
// of memory that the page needs.
func (r *aheadReader) decode(ctx context.Context, lv *level, info tier.Info) (int64, error) {
	var h *pagefile.Header
	file, err := lv.checked.Open(ctx, info.Name, func(blob tier.Blob) (err error) {
		if h, err = pagefile.ReadHeader(ctx, yieldingBlob{blob, r.traffic}); err != nil {
			return err
		}
		return r.pages.CheckPlace(h, info.Name)
	})
	if err != nil {
		return 0, err
	}
	defer file.Close()
	if h.PageTokens != r.pageTokens {
		return 0, pagefile.Mismatch("page size is %d tokens, want %d", h.PageTokens, r.pageTokens)
	}
	size := ram.Bytes(h)
	if size > r.left {
		return 0, errEnough
	}
	kept, err := r.ram.keepAhead(lv, file.Info(), h, func(rows []byte) error {
		err := pagefile.ReadPayload(ctx, yieldingBlob{file, r.traffic}, h, h.All(), r.codec, rows)
		if !tier.Doubtful(err) {
			return err
		}
		return r.decodeAgain(ctx, lv, h, rows)
	})
	switch {
	case err != nil:
		return 0, err
	case !kept:
		return 0, errEnough
	}
	return size, nil
}

// decodeAgain reads the page with header h into rows once more, and condemns a damaged page.
func (r *aheadReader) decodeAgain(ctx context.Context, lv *level, h *pagefile.Header, rows []byte) error {
	file, err := lv.checked.Open(ctx, h.Name(), func(blob tier.Blob) error {
		again, err := pagefile.ReadHeader(ctx, blob)
		switch {
		case err != nil:
			return err
		case again.Crc != h.Crc:
			return pagefile.Mismatch("it was replaced while it was read")
		}
		return pagefile.ReadPayload(ctx, yieldingBlob{blob, r.traffic}, h, h.All(), r.codec, rows)
	})
	if err == nil {
		file.Close()
	}
	return err
}

// yieldingTier is a Tier whose files are read only while no Read or Put runs.
type yieldingTier struct {
	tier.Tier
	traffic *work.Traffic
}

func (t yieldingTier) Open(ctx context.Context, name pagefile.Name, anew bool) (tier.Blob, error) {
	blob, err := t.Tier.Open(ctx, name, anew)
	if err != nil {
		return nil, err
	}
	return yieldingBlob{blob, t.traffic}, nil
}

type yieldingBlob struct {
	tier.Blob
	traffic *work.Traffic
}

func (b yieldingBlob) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := b.traffic.StandBack(ctx); err != nil {
		return err
	}
	return b.Blob.ReadAt(ctx, p, off)
}

func (b yieldingBlob) ReadsAtOnce() int { return pagefile.ReadsAtOnce(b.Blob) }

// readAhead has the pages that ReadAhead has read and no Read has returned since. With Options.RAM
// a page counts as used when a Read finds it in memory there; a page that has left that memory
// before is of no use. Without Options.RAM the page is in the system's page cache, which does not
// say whether it kept the page: the first Read of the page counts.
type readAhead struct {
	counts *counters

	mu    sync.Mutex
	pages map[pagefile.Name]bool
}

// aheadNotedMax bounds readAhead.pages. Further pages never count as used.
const aheadNotedMax = 1 << 16

// note is called for a page that was read ahead.
func (a *readAhead) note(name pagefile.Name) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pages == nil {
		a.pages = make(map[pagefile.Name]bool)
	}
	if len(a.pages) < aheadNotedMax {
		a.pages[name] = true
	}
}

// used is called for a page that a Read returned, from memory or not.
func (a *readAhead) used(name pagefile.Name, memory bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.pages[name] {
		return
	}
	delete(a.pages, name)
	if memory {
		a.counts.aheadUsed.Add(1)
	}
}
