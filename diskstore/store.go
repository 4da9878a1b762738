package diskstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/counted"
	"github.com/kvtier/kvtier/diskstore/internal/move"
	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/internal/ram"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/tier/guard"
	"github.com/kvtier/kvtier/internal/steady"
)

// closePatience bounds the wait of Close for background work and for running operations of callers.
const closePatience = 4 * time.Second

// Store keeps pages of one fingerprint in one or two tiers. All methods may be called from
// several goroutines.
type Store struct {
	opt       Options
	log       *slog.Logger
	disk      *dir.Tier   // the local level's tier
	guard     *guard.Tier // the remote level's tier; nil without a remote tier
	local     *level
	remote    *level // nil without a remote tier
	tiers     levels // both
	lookup    lookup
	reader    reader
	ram       memory
	codec     *pagefile.Codec
	pages     *names.Pages // of this store
	manifests *manifests   // of these

	promoting    *work.Queue   // promotions and touches of remote pages
	through      *move.Through // nil unless pages are written through
	throughQueue *work.Queue

	counts  counters
	chains  *recency.Chains
	maker   *room.Maker // of room in the local tier
	mover   *move.Mover // nil without a remote tier
	health  health      // of the local tier
	traffic work.Traffic
	now     func() time.Time

	life *work.Life
}

// Flush waits for collections, demotions, promotions and pages written through that earlier calls caused, records Hits, and returns
// unused claims to the budgets. After Flush the process may be killed without a loss: no other process has to
// correct the ledger. Flush returns ctx's error when ctx ends first.
func (s *Store) Flush(ctx context.Context) error {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for _, q := range s.tiers.queues(s.promoting, s.throughQueue) {
		if err := q.Wait(ctx); err != nil {
			return err
		}
	}
	s.giveBack(ctx)
	return nil
}

// giveBack settles the ledgers of tiers that answer, and records tombstones. After a failure the claim
// stays until files are counted.
func (s *Store) giveBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hitsPatience)
	defer cancel()
	for _, lv := range s.tiers {
		if lv.answers() {
			_ = lv.book.GiveBack(ctx)
			lv.recordTombstones(ctx)
		}
	}
}

// leave settles the ledgers and closes the local tier, for at most patience.
func (s *Store) leave(patience time.Duration) error {
	_, err := steady.Do(context.Background(), new(steady.Guard), steady.Wait{Most: patience}, func() (struct{}, error) {
		ctx, cancel := context.WithTimeout(context.Background(), guard.CloseIn)
		defer cancel()
		s.giveBack(ctx)
		return struct{}{}, s.disk.Close()
	}, nil)
	return err
}

// Close stops background work and waits for running operations, for at most 5 s in total. Operations that
// hang in the operating system are left behind. Later calls fail with tier.ErrClosed or find nothing.
func (s *Store) Close() error {
	deadline := time.Now().Add(closePatience)
	if !s.life.Close(closePatience) {
		return nil
	}
	for _, lv := range s.tiers {
		lv.hitClock.Stop()
		lv.tombstoneClock.Stop()
	}
	if s.through != nil {
		s.through.Clock.Stop()
	}
	forgotten := make(chan struct{})
	go func() { // which waits for a look at the files of pages in memory, on a disk that may hang
		defer close(forgotten)
		s.ram.Close()
	}()
	steady.Ended(forgotten, time.Until(deadline))
	var err error
	for _, q := range s.tiers.queues(s.promoting, s.throughQueue) {
		err = errors.Join(err, q.Close(time.Until(deadline)))
	}
	err = errors.Join(err, s.leave(max(time.Until(deadline), guard.CloseIn)))
	if s.remote != nil {
		// An error of a mount that hangs or is gone is ignored. The next process removes this
		// process's files there.
		_ = s.guard.Close()
	}
	if err != nil {
		return fmt.Errorf("close store in %s: %w", s.opt.Local.Root, err)
	}
	return nil
}

// Open opens a store and creates a missing local root. Open returns ErrOptions;
// tier.ErrRootSymlink, tier.ErrRootNotDir, tier.ErrRootOwner or tier.ErrRootMode for an unsafe root
// of either tier; pagefile.ErrMismatch when the fingerprint is in use with another page size; or an
// error of the local filesystem. A remote tier that cannot be reached is not an error: Open logs
// the failure, and the store tries again later.
func Open(ctx context.Context, opt Options) (*Store, error) {
	s, err := newStore(opt, true)
	if err != nil {
		closeUnused(opt.RemoteTier)
		return nil, err
	}
	if err := s.openLocal(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open store in %s: %w", s.opt.Local.Root, err), s.Close())
	}
	if err := s.openRemote(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open store, remote tier %s: %w", s.remote.where, err), s.Close())
	}
	s.maker.Tidy()
	if s.through != nil {
		s.through.Resume(s.local.counting...)
	}
	return s, nil
}

// closeUnused closes a remote tier whose store was not opened.
func closeUnused(t tier.Tier) {
	if t != nil {
		_ = guard.New(t, DefaultRemoteTimeout, DefaultReadTimeout, slog.New(slog.DiscardHandler), time.Now, func() {}).Close()
	}
}

// newStore makes a store without reading its roots. With create, the store makes a missing
// local root later; without create, the store needs no fingerprint.
func newStore(opt Options, create bool) (*Store, error) {
	opt, err := opt.withDefaults(create)
	if err != nil {
		return nil, err
	}
	c, err := pagefile.NewCodec()
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{
		opt: opt, pages: names.Of(opt.Fingerprint, opt.Cold.on()), log: opt.Logger.With("component", "diskstore"), codec: c, now: opt.Now,
		life: work.NewLife(), promoting: work.NewQueue(), throughQueue: work.NewQueue(),
	}
	s.manifests = &manifests{pages: s.pages, pageTokens: opt.PageTokens, identity: opt.Identity, origin: opt.Origin}
	s.health.log = s.log.With("tier", tier.Local, "root", opt.Local.Root)
	s.health.tell, s.health.now = opt.Trouble, func() time.Time { return s.now() }
	local := dir.Options{
		Create: create, Timeout: opt.Timeout, Log: s.health.log,
		Replaced: func() { s.local.book.Restart() },
	}
	if opt.RAM.BudgetBytes > 0 {
		local.Prefix = serverPrefix(opt.RAM.Server)
	}
	s.ram.health.log = s.log.With("tier", tier.RAM)
	s.ram.lossy, s.ram.budget, s.ram.peers, s.ram.life = s.pages.Lossy, opt.RAM.BudgetBytes, func() (int, error) { return s.disk.Peers() }, s.life
	s.ram.Tier = ram.New(ram.Options{MaxTails: ramTails, TouchEvery: recency.TouchEvery, Tick: s.ram.tend})
	s.disk = dir.New(opt.FS, opt.Local.Root, local)
	s.openLevels()
	s.lookup = lookup{
		pages: s.pages, pageTokens: opt.PageTokens, local: s.local, remote: s.remote, tiers: s.tiers, below: s.guard, remoteTimeout: opt.RemoteTimeout, stateTime: stateTime,
		ram: &s.ram, chains: s.chains, now: s.local.now,
	}
	s.openRoom()
	s.reader = reader{
		pages: s.pages, pageTokens: opt.PageTokens, codec: s.codec, tiers: s.tiers, ram: &s.ram,
		chains: s.chains, mover: s.mover, behind: s.promoting, now: s.local.now,
		counts: &s.counts, ahead: readAhead{counts: &s.counts},
	}
	return s, nil
}

// openLevels makes the tiers of the store and the order of its chains.
func (s *Store) openLevels() {
	s.local = &level{name: tier.Local, config: s.opt.Local, tier: s.disk, root: s.disk}
	s.openLevel(s.local, s.opt.WritePerDay, counted.Options{
		ThroughPages: move.ThroughMost * int(min(1, s.opt.ThroughPerDay)),
		Aside:        s.disk,
		// Only now: a removal that takes the manifest looks for pages after that.
		Visible: func(ctx context.Context, name pagefile.Name) { _ = s.manifests.describe(ctx, s.disk, name.Fingerprint) },
	})
	s.chains = recency.New(s.disk, s.pages, s.local.now, s.local.book.Horizon, s.local.book.Use)
	s.tiers = levels{s.local}
	if below, log := below(s.opt, s.log, func() { s.remote.book.Restart() }); below != nil {
		s.guard = guard.New(below, s.opt.RemoteTimeout, s.opt.ReadTimeout, log, time.Now, func() {
			s.counts.tierErrors.Add(1)
			s.remote.counts.failed.Add(1)
		})
		s.guard.Appeared = func(done tier.Committed) { s.remote.files.AppearedLate(done) }
		s.remote = &level{
			name: tier.Remote, far: true, config: s.opt.Remote, tier: s.guard,
			down: s.guard.Breaker.Down, recording: s.local.collecting,
		}
		s.remote.root, _ = below.(*dir.Tier)
		s.openLevel(s.remote, 0, counted.Options{})
		s.tiers = levels{s.local, s.remote}
	}
	s.ram.levels = s.tiers
}

// below returns the tier to which pages move down, nil without one, and its log. replaced is told that
// another directory has taken the place of the tier's.
func below(opt Options, log *slog.Logger, replaced func()) (tier.Tier, *slog.Logger) {
	log = log.With("tier", tier.Remote)
	if opt.RemoteTier != nil {
		return opt.RemoteTier, log
	}
	root := opt.Remote.Root
	if root == "" {
		return nil, nil
	}
	log = log.With("root", root)
	return dir.New(opt.FS, root, dir.Options{Shared: true, Timeout: opt.Timeout, Log: log, Replaced: replaced}), log
}

// openRoom lets room be made in both tiers, and pages move between them.
func (s *Store) openRoom() {
	local := s.local.roomOptions(s.opt.Eviction, s.chains, &s.counts.demoted)
	local.Crowded = s.health.crowd
	if picks := s.opt.Obsolete; picks != nil {
		local.Obsolete = func(ctx context.Context) map[pagefile.Key]bool { return s.local.obsolete(ctx, picks) }
	}
	if s.remote != nil {
		remote := s.remote.roomOptions(s.opt.Eviction, s.chains, nil)
		remote.CountEvery = room.FarCountEvery
		s.remote.room = room.NewCollector(s.remote.files, remote)
		s.mover = s.newMover()
		local.Below = s.mover
	}
	s.local.room = room.NewCollector(s.local.files, local)
	s.maker = room.NewMaker(s.local.room, room.MakerOptions{
		Queue: s.local.collecting, Reachable: s.tiers.reachable, Capped: s.capped,
		Collected: func() {
			// In another queue: listing over a network takes minutes, and Put waits for the queue
			// of the local tier.
			if s.remote != nil && s.remote.answers() {
				s.remote.room.Tidy(s.remote.collecting)
			}
		},
	})
	if s.mover != nil {
		s.mover.Above = s.maker
		if s.opt.ThroughPerDay > 0 {
			s.through = &move.Through{Mover: s.mover, Queue: s.throughQueue, Traffic: &s.traffic, PerDay: s.opt.ThroughPerDay}
		}
	}
}

func (s *Store) newMover() *move.Mover {
	return &move.Mover{Options: move.Options{
		Local: s.local.files, Remote: s.remote.files, Ours: s.local.checked, Theirs: s.remote.checked,
		Pages: s.pages, Chains: s.chains, Codec: s.codec, Log: s.log,
		Below: s.remote.room, Collecting: s.remote.collecting, Promoting: s.promoting,
		Resting: s.guard.Breaker.Resting,
		Describe: func(ctx context.Context, fingerprint pagefile.Key, made bool) error {
			return s.manifests.below(ctx, s.disk, s.guard, fingerprint, made)
		},
		LinkUp: s.local.linkIn, LinkDown: s.remote.linkIn,
		AddBranch: func(ctx context.Context, h *pagefile.Header) error {
			_, err := s.remote.addBranch(ctx, h)
			return err
		},
		Lossy: func(h *pagefile.Header) {
			s.counts.lossyPages.Add(1)
			s.counts.lossyRaw.Add(uint64(h.Layout.Size()))
			s.counts.lossyBytes.Add(uint64(h.FileBytes))
		},
		Promoted: func() { s.counts.promoted.Add(1) }, Failed: s.local.noteTierError,
		Cold:     pagefile.Cold{K: s.opt.Cold.K, V: s.opt.Cold.V, Compress: s.opt.Compress || s.opt.CompressRemote},
		Pack:     s.opt.CompressRemote,
		Patience: s.opt.RemoteTimeout,
	}}
}

// openLocal checks the local root, claims the process's temporary files, reads the ledger and
// writes the manifest. A store on a full disk can be opened and read.
func (s *Store) openLocal(ctx context.Context) error {
	if err := s.disk.Claim(ctx); err != nil && !errors.Is(err, tier.ErrNoSpace) {
		return err
	}
	if err := s.local.book.Refresh(ctx); err != nil {
		return err
	}
	err := s.manifests.ensure(ctx, s.disk)
	if errors.Is(err, tier.ErrNoSpace) {
		s.health.note("write manifest", err)
		return nil
	}
	return err
}

// openRemote checks the remote root, if there is one, for at most RemoteTimeout. An unsafe
// remote root is an error, and the store is not opened.
func (s *Store) openRemote(ctx context.Context) error {
	if s.remote == nil {
		return nil
	}
	s.guard.Breaker.Silence()
	_, err := tier.Stat(ctx, s.guard, pagefile.Name{Fingerprint: s.opt.Fingerprint, Class: pagefile.ClassManifest})
	if tier.UnsafeRoot(err) {
		return err
	}
	s.guard.Breaker.Speak()
	return nil
}
