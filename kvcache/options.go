package kvcache

import (
	"context"
	"log/slog"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/kvcache/runs"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
	"github.com/kvtier/kvtier/telemetry/why"
)

// Store keeps pages. [diskstore.Store] implements Store. Methods may be called from several goroutines.
type Store interface {
	Put(ctx context.Context, page *pagefile.Page) error
	PutIfRoom(ctx context.Context, page *pagefile.Page) error
	Has(key pagefile.Key) bool
	Find(ctx context.Context, p diskstore.Prompt) diskstore.Found
	AnyOf(ctx context.Context, keys []pagefile.Key) (key pagefile.Key, found bool)
	Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error
	Flush(ctx context.Context) error
	Close() error
}

// Options configure a [TieredCausal]. Store, Fingerprint and Layers are required.
type Options struct {
	Store Store
	// Fingerprint identifies the pages' model and engine, and is the parent key of a first page.
	Fingerprint pagefile.Key
	// Layers is the number of layers with K/V, in all caches.
	Layers int
	// PageTokens is the number of tokens of a page; zero means [diskstore.DefaultPageTokens]. 256
	// tokens of an 8B model have 32 MiB: enough for sequential reads, and little to compute again where
	// two prompts part. A cache that drops positions must keep at least PageTokens.
	PageTokens int
	// States is the state of recurrent layers, nil in a model without any.
	States States
	// StateEvery is the number of tokens between two states of a prompt or answer; zero means 2048.
	StateEvery int
	// Media gives images and sounds an identity that outlives the process. Without Media,
	// rows from the first image or sound on are not stored.
	Media MediaDigest
	// Backwards: an input without identity also changes earlier rows of its batch.
	Backwards bool
	// Reach is the number of tokens of a batch in a model in which rows of an image attend to all
	// of their batch, also to the text behind the image. Zero means that no row attends to later
	// text than that of its own span.
	Reach int
	// Rates has the measured costs of computing and reading, which decide whether pages are read. Nil
	// means no costs are known, and measurements are not kept. The wrapper saves Rates.
	Rates *rates.Rates
	// Runs is an index of text that can be reused at other positions. Nil means that only text with the
	// same beginning is reused. The wrapper adds the pages that it stores and reads.
	Runs *runs.Index
	// Lossy also restores lossy pages, where they reach a page further than exact ones. Rows from
	// the first lossy page on, and rows computed after them, are not stored. Without Lossy no
	// lossy page is looked up, and in a model with windows or state none ever is.
	Lossy bool
	// TailDelay is the time after a request's end at which its tail is stored, if the slot still
	// has it: a request that goes on meanwhile makes the tail longer. Rows that leave the cache
	// are stored at once, and so are the tails of models with windows or state.
	TailDelay time.Duration
	// RunsFilled is closed when Runs has the pages of earlier processes. Requests wait for it
	// until two seconds after New. Nil means that Runs is filled.
	RunsFilled <-chan struct{}
	// Latest brings, once, the text of the latest conversation: [TieredCausal.FillSlot] restores
	// it while the model loads. Nil means none.
	Latest <-chan []int32
	// Poison fills the cells a restore has taken with NaN bytes before rows are written,
	// to show that none of them is read too early. For tests.
	Poison bool
	// AlwaysRestore reads pages even where computing them seems quicker. For tests.
	AlwaysRestore bool
	// QueuedBytes bounds the memory of rows that wait to be written after they have left the cache;
	// zero means 1 GiB. Rows that are still in the cache, and rows whose writing failed, take up to a
	// quarter each, though the first page may be larger, and buffers for copies a sixteenth each.
	QueuedBytes int64
	// Meter counts prompts and pages. Nil counts nothing.
	Meter *telemetry.Meter
	// Recents are the latest prompts, for the cause of a miss. Nil explains none. Prompts are then
	// counted when they are explained, a little later.
	Recents *why.Recents
	// Unstored is told of rows that should have been stored and do not reach the store; the store
	// tells of its own failures. Nil means that only Logger is.
	Unstored *unstored.Watch
	// Logger receives log lines; nil means slog's default.
	Logger *slog.Logger
}

var _ Store = (*diskstore.Store)(nil)
