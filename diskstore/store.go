package diskstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/move"
	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/tier/guard"
	"github.com/kvtier/kvtier/internal/steady"
)

// closePatience bounds the wait of Close for background work and for running operations of
// callers.
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

	promoting *work.Queue // promotions and touches of remote pages

	counts  counters
	chains  *recency.Chains
	maker   *room.Maker // of room in the local tier
	down    *move.Down  // nil without a remote tier, as up
	up      *move.Up
	health  health // of the local tier
	capped  capNote
	crowded crowded // of the local tier
	traffic work.Traffic
	now     func() time.Time

	life *work.Life
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
	for _, q := range s.tiers.queues(s.promoting) {
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

// Close stops background work and waits for running operations, for at most 5 s in total.
// Operations that hang in the operating system are left behind. Later calls fail with
// tier.ErrClosed or find nothing.
func (s *Store) Close() error {
	deadline := time.Now().Add(closePatience)
	if !s.life.Close(closePatience) {
		return nil
	}
	for _, lv := range s.tiers {
		lv.hitClock.Stop()
		lv.tombstoneClock.Stop()
	}
	if !s.ram.off() {
		s.ram.Close()
	}
	var err error
	for _, q := range s.tiers.queues(s.promoting) {
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
