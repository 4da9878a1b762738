package diskstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/ram"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/tier/guard"
)

// closePatience bounds the wait of Close for background work and for running operations of
// callers.
const closePatience = 4 * time.Second

// Store keeps pages of one fingerprint in one or two tiers. All methods may be called from
// several goroutines.
type Store struct {
	opt    Options
	log    *slog.Logger
	disk   *dir.Tier   // the local level's tier
	guard  *guard.Tier // the remote level's tier; nil without a remote tier
	local  *level
	remote *level    // nil without a remote tier
	ram    *ram.Tier // nil when no page is kept in memory
	codec  *pagefile.Codec
	cold   pagefile.Key // fingerprint of this store's lossy pages

	promoting *work.Queue // promotions and touches of remote pages

	counts  counters
	ahead   readAhead
	links   linkCache
	health  health // of the local tier
	capped  capNote
	crowded crowded // of the local tier
	traffic work.Traffic
	sharing sharing
	whole   sync.Pool // *[]byte for whole pages on their way through memory
	now     func() time.Time

	watch watcher // of a Root's GC

	wantMu    sync.Mutex
	want      demand      // of the next collection of the local tier
	exhausted atomic.Bool // the last collection could not make the wanted room
	roomBelow atomic.Bool // the remote tier makes room for pages that move down
	refused   moment      // the last time that the remote tier refused a page

	ramHealth health

	life *work.Life
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
		return nil, errors.Join(fmt.Errorf("open store, remote tier %s: %w", s.remote.where(), err), s.Close())
	}
	s.requestCollection(demand{})
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
		opt: opt, cold: pagefile.ColdFingerprint(opt.Fingerprint), log: opt.Logger.With("component", "diskstore"), codec: c, now: time.Now,
		life: work.NewLife(), promoting: work.NewQueue(),
		links: linkCache{byKey: make(map[pagefile.Key]link)},
	}
	s.health.log = s.log.With("tier", tier.Local, "root", opt.Local.Root)
	s.capped.pages = &s.counts.writeCaps
	if opt.Trouble != nil {
		s.health.tell, s.capped.tell = s.tellTrouble, opt.Trouble
	}
	s.ahead.counts = &s.counts
	local := dir.Options{
		Create: create, Timeout: opt.Timeout, Log: s.health.log,
		Replaced: func() { s.local.book.Restart() },
	}
	if opt.RAM.BudgetBytes > 0 {
		local.Prefix = serverPrefix(opt.RAM.Server)
		s.ramHealth.log = s.log.With("tier", tier.RAM)
		s.ram = ram.New(ram.Options{MaxTails: ramTails, TouchEvery: touchEvery, Tick: s.tendRAM})
	}
	s.disk = dir.New(opt.FS, opt.Local.Root, local)
	s.local = newLevel(s, tier.Local, s.disk, opt.Local, opt.WritePerDay)
	if below, log := s.below(); below != nil {
		s.guard = guard.New(below, opt.RemoteTimeout, opt.ReadTimeout, log, time.Now, func() {
			s.counts.tierErrors.Add(1)
			s.remote.counts.failed.Add(1)
		})
		s.guard.Appeared = s.appearedLate
		s.remote = newLevel(s, tier.Remote, s.guard, opt.Remote, 0)
	}
	return s, nil
}

// below returns the tier to which pages move down, nil without one, and its log.
func (s *Store) below() (tier.Tier, *slog.Logger) {
	log := s.log.With("tier", tier.Remote)
	if s.opt.RemoteTier != nil {
		return s.opt.RemoteTier, log
	}
	root := s.opt.Remote.Root
	if root == "" {
		return nil, nil
	}
	log = log.With("root", root)
	return dir.New(s.opt.FS, root, dir.Options{
		Shared: true, Timeout: s.opt.Timeout, Log: log,
		Replaced: func() { s.remote.book.Restart() },
	}), log
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
	err := s.ensureManifest(ctx, s.disk)
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
	_, err := s.guard.Stat(ctx, pagefile.Name{Fingerprint: s.opt.Fingerprint, Class: pagefile.ClassManifest})
	if tier.UnsafeRoot(err) {
		return err
	}
	s.guard.Breaker.Speak()
	return nil
}

// levels returns the tiers in the order of look-ups, beginning with the tier of the given
// name.
func (s *Store) levels(first string) []*level {
	switch {
	case s.remote == nil:
		return []*level{s.local}
	case first == tier.Remote:
		return []*level{s.remote, s.local}
	}
	return []*level{s.local, s.remote}
}

// level returns the tier of a name, Local or Remote.
func (s *Store) level(name string) *level {
	if name == tier.Remote {
		return s.remote
	}
	return s.local
}

// queues returns the queues of background work. A job may submit jobs to the queues after its
// own, and to none before.
func (s *Store) queues() []*work.Queue {
	queues := []*work.Queue{s.promoting}
	for _, lv := range s.levels(tier.Local) {
		queues = append(queues, lv.collecting)
	}
	return queues
}

// pageName returns the name of a full page of this store.
func (s *Store) pageName(key pagefile.Key) pagefile.Name {
	return pagefile.Name{Fingerprint: s.opt.Fingerprint, Class: pagefile.ClassPage, Key: key}
}

// tailName returns the name of a tail of this store.
func (s *Store) tailName(key pagefile.Key) pagefile.Name {
	return pagefile.Name{Fingerprint: s.opt.Fingerprint, Class: pagefile.ClassTail, Key: key}
}

// refName returns the name of the page that ref describes.
func (s *Store) refName(ref Ref) pagefile.Name {
	name := s.pageName(ref.Key)
	if ref.Tail {
		name = s.tailName(ref.Key)
	}
	if ref.old {
		name.Parent = ref.Parent
	}
	if ref.Lossy {
		name.Fingerprint = s.cold
	}
	return name
}

// Flush waits for collections, demotions and promotions that earlier calls caused, records
// Hits, and returns unused claims to the budgets. After Flush the process may be killed
// without a loss: no other process has to correct the ledger. Flush returns ctx's error when
// ctx ends first.
func (s *Store) Flush(ctx context.Context) error {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for _, q := range s.queues() {
		if err := q.Wait(ctx); err != nil {
			return err
		}
	}
	s.giveBack(ctx)
	return nil
}

// answers reports whether a tier is not known to be down. The local tier is never down.
func (lv *level) answers() bool { return lv == lv.s.local || !lv.s.guard.Breaker.Down() }

// giveBack settles the ledgers of tiers that answer, and records graves. After a failure the claim
// stays until files are counted.
func (s *Store) giveBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hitsPatience)
	defer cancel()
	for _, lv := range s.levels(tier.Local) {
		if lv.answers() {
			_ = lv.book.GiveBack(ctx)
			lv.recordGraves(ctx)
		}
	}
}

// leave settles the ledgers and closes the local tier, for at most patience.
func (s *Store) leave(patience time.Duration) error {
	done := make(chan error, 1)
	go func() { // left behind by a disk that hangs
		ctx, cancel := context.WithTimeout(context.Background(), guard.CloseIn)
		defer cancel()
		s.giveBack(ctx)
		done <- s.disk.Close()
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return errors.New("the local tier does not answer")
	}
}

// Close stops background work and waits for running operations, for at most 5 s in total.
// Operations that hang in the operating system are left behind. Later calls fail with
// tier.ErrClosed or find nothing.
func (s *Store) Close() error {
	deadline := time.Now().Add(closePatience)
	if !s.life.Close(closePatience) {
		return nil
	}
	for _, lv := range s.levels(tier.Local) {
		lv.hitClock.Stop()
		lv.graveClock.Stop()
	}
	if s.ram != nil {
		s.ram.Close()
	}
	var err error
	for _, q := range s.queues() {
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
