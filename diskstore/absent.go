package diskstore

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/branch"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/reuse"
	"github.com/kvtier/kvtier/diskstore/internal/tombstones"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// tombstonesEvery bounds the time before a removal is written to a tier's list, together with
	// others. Writing costs at most tombstones.BytesMax, and no sync.
	tombstonesEvery = 5 * time.Second

	// remoteTombstonesEvery is the same for a remote tier, whose list is read as seldom: it would
	// take a slow tier's time from restores.
	remoteTombstonesEvery = time.Minute

	// tombstonesSeenEvery bounds the age of what is known of other processes' removals.
	tombstonesSeenEvery = time.Minute

	// gonePatience bounds the time that Gone takes.
	gonePatience = 5 * time.Second
)

// TombstoneReason is why a page left a tier.
type TombstoneReason byte

// Reasons. Lists have these numbers: never change one.
const (
	TombstoneRoom    TombstoneReason = 1 // a budget or the disk needed the room
	TombstoneRemoved TombstoneReason = 2 // kvtier gc, kvtier rm or ollama rm removed it
	TombstoneUnused  TombstoneReason = 3 // its fingerprint was not used any more
	TombstoneDamaged TombstoneReason = 4 // it went to quarantine
)

// String returns the reason in words.
func (r TombstoneReason) String() string {
	switch r {
	case TombstoneRoom:
		return "room was needed"
	case TombstoneRemoved:
		return "it was removed by command"
	case TombstoneUnused:
		return "its model or build was not used any more"
	case TombstoneDamaged:
		return "it was damaged"
	}
	return "for a reason that this version does not know"
}

// Tombstone tells of a page that has left a tier.
type Tombstone struct {
	When   time.Time
	Tier   string // Local or Remote
	Reason TombstoneReason
}

// noteGone notes that a page has left the tier. The list is written later, together with other pages.
func (lv *level) noteGone(info tier.Info, reason TombstoneReason) {
	lv.tombstones.Add(tombstones.Of(info.Key, lv.now(), byte(reason), recency.Uses(info.Used), info.Used))
	lv.recordIn(&lv.tombstoneClock, tombstonesEvery, remoteTombstonesEvery, lv.recordTombstones)
}

// recordTombstones writes new records to the tier's list. After a failure the next removal, or Close,
// tries again.
func (lv *level) recordTombstones(ctx context.Context) {
	fresh := lv.tombstones.Fresh()
	if fresh == 0 || !lv.answers() {
		return
	}
	ctx, cancel := unhurried(ctx, hitsPatience)
	defer cancel()
	_, err := lv.tier.Tombstones(ctx, func(content []byte) []byte { return lv.tombstones.Merge(content, lv.now()) })
	if err == nil {
		lv.tombstones.Written(fresh)
	}
}

// seeTombstones reads the tier's list, which other processes change, at most once a minute.
func (lv *level) seeTombstones(ctx context.Context) {
	now := lv.now()
	if lv.tombstonesSeen.Within(tombstonesSeenEvery, now) || !lv.answers() {
		return
	}
	lv.tombstonesSeen.Note(now)
	ctx, cancel := unhurried(ctx, gonePatience)
	defer cancel()
	if content, err := lv.tombstoneList(ctx); err == nil {
		lv.tombstones.See(content)
	} else if !errors.Is(err, tier.ErrNotFound) {
		lv.noteTierError(err)
	}
}

// before is what is known of a page that is stored: its uses, and how it left the tier, if it did. Pages that continue
// it may be stored, and must not leave after it.
type before struct {
	there tier.Info // the file that the page replaces, if there is one
	left  tombstones.Tombstone
	room  reuse.Room
	ok    bool // the page has left
}

// before tells of a full page of the tier.
func (lv *level) before(ctx context.Context, name pagefile.Name) (b before) {
	if info, err := tier.Stat(ctx, lv.tier, name); err == nil {
		return before{there: info}
	}
	lv.seeTombstones(ctx)
	var after int
	b.left, after, b.ok = lv.tombstones.Last(name.Key)
	switch TombstoneReason(b.left.Reason) {
	case TombstoneRoom:
		pages, _, _ := lv.files.Holding()
		b.room = reuse.RoomFor(1 + float64(after)/float64(max(1, pages)))
		return b
	case TombstoneDamaged:
		return b
	}
	return before{}
}

// uses is the page's number of uses so far.
func (b before) uses() int {
	if b.there.Found() {
		return recency.Uses(b.there.Used)
	}
	return int(b.left.Uses)
}

// again reports whether the page is used again once it is stored with a recency.
func (b before) again(used time.Time) bool {
	if b.there.Found() {
		return recency.Again(b.there.Used, used)
	}
	return b.ok
}

// stored counts the page, which was stored at a time with a recency.
func (lv *level) stored(b before, used, now time.Time) {
	switch {
	case b.there.Found():
		if b.again(used) {
			lv.book.Use(b.uses(), used.Sub(b.there.Used))
		}
	case b.ok && b.left.Reason == byte(TombstoneDamaged):
		lv.book.Use(b.uses(), b.left.IdleAt(now))
	case b.ok:
		lv.counts.returned[b.room].Add(1)
		lv.book.Returned(b.uses(), b.left.IdleAt(now), b.room)
	default:
		lv.book.Stored()
	}
}

// tombstonesByUse returns the tombstones of pages that left for want of room.
func (lv *level) tombstonesByUse(ctx context.Context) map[tombstones.Beginning]tombstones.Tombstone {
	lv.seeTombstones(ctx)
	all := lv.tombstones.Pages()
	maps.DeleteFunc(all, func(_ tombstones.Beginning, g tombstones.Tombstone) bool { return g.Reason != byte(TombstoneRoom) })
	return all
}

// Failures returns the number of operations of each tier that have failed so far. A look-up during
// which one grows may have missed pages. Failures does no I/O.
func (s *Store) Failures() (local, remote uint64) {
	if s.remote != nil {
		remote = s.remote.counts.failed.Load()
	}
	return s.local.counts.failed.Load(), remote
}

// Gone explains pages that a look-up did not find, as far as known: by the latest removal of one of
// them, or that the file of one is in its place and failed its check. Gone reads a tier's list, and
// is called behind a request. ok is false where nothing is known.
func (s *Store) Gone(ctx context.Context, keys ...pagefile.Key) (found Tombstone, ok bool) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return found, false
	}
	defer leave()
	ctx, cancel := unhurried(ctx, gonePatience)
	defer cancel()
	if len(keys) == 0 {
		return found, false
	}
	for _, lv := range s.tiers {
		if !lv.answers() {
			continue
		}
		if info, err := lv.pages.Stat(ctx, lv.tier, keys[0]); err == nil && lv.checked.Bad.IsBad(info) {
			return Tombstone{When: s.now(), Tier: lv.name, Reason: TombstoneDamaged}, true
		}
		content, err := lv.tombstoneList(ctx)
		if err != nil && !errors.Is(err, tier.ErrNotFound) {
			lv.noteTierError(err)
		}
		if g, there := lv.tombstones.Find(content, keys); there && (!ok || g.When.After(found.When)) {
			found, ok = Tombstone{When: g.When, Tier: lv.name, Reason: TombstoneReason(g.Reason)}, true
		}
	}
	return found, ok
}

// tombstoneList returns the content of the tier's list; that of a remote tier as of the last minute.
func (lv *level) tombstoneList(ctx context.Context) ([]byte, error) {
	if !lv.far {
		return lv.tier.Tombstones(ctx, nil)
	}
	lv.tombstoneRead.Lock()
	defer lv.tombstoneRead.Unlock()
	if now := lv.now(); lv.tombstoneRead.at.IsZero() || now.Sub(lv.tombstoneRead.at).Abs() >= remoteTombstonesEvery {
		content, err := lv.tier.Tombstones(ctx, nil)
		if err != nil {
			return nil, err
		}
		lv.tombstoneRead.content, lv.tombstoneRead.at = content, now
	}
	return lv.tombstoneRead.content, nil
}

// unhurried returns a context that ends after some time, or with another one, and always as if its
// caller had left: a tier that has not answered a look-up behind a request by then has not failed.
func unhurried(parent context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, cancel)
	timer := time.AfterFunc(most, cancel)
	return ctx, func() {
		stop()
		timer.Stop()
		cancel()
	}
}

const (
	// elsewhereMax is the number of fingerprints of a tier that Elsewhere looks into.
	elsewhereMax = 16

	// elsewherePages bounds the pages that Elsewhere looks for under one fingerprint.
	elsewherePages = 1024

	// elsewherePatience bounds the time that Elsewhere takes for a tier.
	elsewherePatience = time.Second
)

// Elsewhere is the beginning of a sequence, stored under another fingerprint than the store's.
type Elsewhere struct {
	Fingerprint pagefile.Key
	Identity    map[string]string // from the manifest
	Tier        string            // Local or Remote
	PageTokens  int
	Tokens      int // leading tokens that are stored
}

// Elsewhere looks for the beginning of a sequence under the most recently used fingerprints of
// both tiers that have a manifest. Lossy pages count as pages of the fingerprint for whose pages they
// stand. Elsewhere looks at the names of files and reads no page, takes
// a bounded time, and is called behind a request. Fingerprints that could not be looked at are left out.
func (s *Store) Elsewhere(ctx context.Context, tokens []int32, media []pagefile.Media) []Elsewhere {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return nil
	}
	defer leave()
	var found []Elsewhere
	for _, lv := range s.tiers {
		if lv.answers() {
			found = append(found, lv.elsewhere(ctx, tokens, media)...)
		}
	}
	return found
}

func (lv *level) elsewhere(ctx context.Context, tokens []int32, media []pagefile.Media) (found []Elsewhere) {
	ctx, cancel := unhurried(ctx, elsewherePatience)
	defer cancel()
	seen := map[pagefile.Key]bool{lv.pages.Exact: true}
	for _, fingerprint := range lv.othersLately(ctx) {
		if ctx.Err() != nil {
			break
		}
		m, err := tier.ReadManifest(ctx, lv.tier, fingerprint)
		if err != nil || m.PageTokens <= 0 {
			continue
		}
		if exact, lossy := tier.LossyOf(fingerprint, m.Identity); lossy {
			fingerprint = exact
			delete(m.Identity, tier.KeyLossyOf)
		}
		if seen[fingerprint] {
			continue
		}
		seen[fingerprint] = true
		e := Elsewhere{Fingerprint: fingerprint, Identity: m.Identity, Tier: lv.name, PageTokens: m.PageTokens}
		if e.Tokens = lv.storedUnder(ctx, fingerprint, m.PageTokens, tokens, media); e.Tokens > 0 {
			found = append(found, e)
		}
	}
	return found
}

// othersLately returns other fingerprints below the root, the most recently used first, as of the
// first count: the fingerprints that have appeared since then come before.
func (lv *level) othersLately(ctx context.Context) []pagefile.Key {
	all, _, err := lv.tier.Survey(ctx)
	if err != nil {
		return nil
	}
	used := make(map[pagefile.Key]time.Time)
	if counted := lv.files.First.Result(); counted != nil {
		for fingerprint, use := range counted.Fingerprints {
			used[fingerprint] = use.LastUsed
		}
	}
	all = slices.DeleteFunc(all, func(k pagefile.Key) bool { return k == lv.pages.Exact || k == lv.pages.Lossy })
	slices.SortFunc(all, func(a, b pagefile.Key) int {
		at, known := used[a]
		bt, also := used[b]
		if known != also {
			if known {
				return 1
			}
			return -1
		}
		return cmp.Or(bt.Compare(at), slices.Compare(a[:], b[:]))
	})
	return all[:min(len(all), elsewhereMax)]
}

// storedUnder counts the leading tokens that are stored under a fingerprint, exact or lossy: full
// pages, or without any the longest tail whose tokens the sequence begins with.
func (lv *level) storedUnder(ctx context.Context, fingerprint pagefile.Key, size int, tokens []int32, media []pagefile.Media) int {
	parent, pages := fingerprint, 0
	for at := 0; at+size <= len(tokens) && pages < elsewherePages && ctx.Err() == nil; at += size {
		parent = pagefile.ChainKey(parent, tokens[at:at+size], pagefile.MediaWithin(media, at, size))
		name := pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassPage, Key: parent}
		_, err := tier.Stat(ctx, lv.tier, name)
		if errors.Is(err, tier.ErrNotFound) {
			_, err = tier.Stat(ctx, lv.tier, pagefile.ColdName(name))
		}
		if err != nil {
			break
		}
		pages++
	}
	if pages > 0 {
		return pages * size
	}
	tail := tokens[:min(len(tokens), size-1)]
	longest := 0
	for _, among := range []pagefile.Key{fingerprint, pagefile.ColdFingerprint(fingerprint)} {
		found, err := branch.Find(ctx, lv.tier, branch.Prompt{
			Fingerprint: among, Parent: fingerprint, Tokens: tail, Media: pagefile.MediaWithin(media, 0, len(tail)), PageTokens: size,
		})
		if err != nil {
			return 0
		}
		for _, c := range found {
			if c.Whole() && c.Class == pagefile.ClassTail {
				longest = max(longest, c.Tokens)
			}
		}
	}
	return longest
}

// Identity is Options.Identity.
func (s *Store) Identity() map[string]string { return s.opt.Identity }
