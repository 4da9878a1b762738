package kvcache

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/internal/steady"
)

// patience bounds the waits that only a cache has.
type patience struct {
	queue time.Duration // for queued pages of a restore's own text; pages written later are computed again
	flush time.Duration // for a flush whose time is over
	close time.Duration // for closing the store, which takes 5 s at most on a disk that answers
}

var usualPatience = patience{queue: 2 * time.Second, flush: time.Second, close: 6 * time.Second}

// disk is a store for which requests wait in bounded time. While an operation hangs, the store has no
// pages. Only the goroutine that writes pages has the store itself, and waits for Put as long as it takes.
type disk struct {
	engine.Disk[Store]
	patience patience
}

// anyOf does as [Store.AnyOf].
func (d *disk) anyOf(ctx context.Context, keys []pagefile.Key) (pagefile.Key, bool) {
	key, err := engine.Ask(ctx, &d.Disk, func() (pagefile.Key, error) {
		if key, found := d.Store.AnyOf(ctx, keys); found {
			return key, nil
		}
		return pagefile.Key{}, tier.ErrNotFound
	})
	return key, err == nil
}

// flush does as [Store.Flush].
func (d *disk) flush(ctx context.Context) error {
	return d.saved(ctx, d.Patience.Page, func() error { return d.Store.Flush(ctx) })
}

// saved runs an operation that saves files on the store's disk, for a bounded time.
func (d *disk) saved(ctx context.Context, most time.Duration, save func() error) error {
	_, err := engine.Wait(ctx, &d.Disk, steady.Wait{Most: most, Grace: d.patience.flush}, func() (struct{}, error) {
		return struct{}{}, save()
	}, nil)
	return err
}

// close does as [Store.Close], and waits at most patience.close, whatever else hangs.
func (d *disk) close() error {
	_, err := steady.Do(context.Background(), new(steady.Guard), steady.Wait{Most: d.patience.close}, func() (struct{}, error) {
		return struct{}{}, d.Store.Close()
	}, nil)
	return err
}
