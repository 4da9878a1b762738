package diskstore

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// ErrOptions reports an Options value that is not valid.
var ErrOptions = errors.New("diskstore: bad options")

// Defaults for the zero values of Options.
const (
	DefaultPageTokens    = 256
	DefaultRemoteTimeout = 250 * time.Millisecond
	DefaultReadTimeout   = 5 * time.Second
)

// TierConfig is the place and the budget of a tier.
type TierConfig struct {
	// Root is the tier's directory. A missing local root is created. A missing remote root is
	// not, because a mount point without its mount must stay empty. A remote root of "" means
	// Options.RemoteTier or, without that, no remote tier.
	Root string

	// BudgetBytes is the disk space, in bytes, that all files below Root may occupy, with any fingerprint and
	// written by any process. 0 means no budget: only 5 % of the filesystem is kept free.
	BudgetBytes int64
}

// RAMConfig is the memory for decoded pages.
type RAMConfig struct {
	// BudgetBytes is the memory, in bytes and including bookkeeping, for all stores with the same Server and
	// local root together; each takes an equal part. 0 means that no page is kept in memory.
	BudgetBytes int64

	// Server names the server whose processes share the budget. "" is a name like any other.
	Server string
}

// Eviction is the order in which pages leave a tier that has no room for them.
type Eviction int

const (
	// EvictByUse lets the pages leave first that are least likely to be used again soon, by their number of uses,
	// the time since the last one, and what became of the tier's earlier pages with as much of both.
	EvictByUse Eviction = iota

	// EvictLRU lets the least recently used pages leave first.
	EvictLRU
)

var evictions = [...]string{EvictByUse: "use", EvictLRU: "lru"}

// ParseEviction reads "use" or "lru".
func ParseEviction(name string) (Eviction, bool) {
	i := slices.Index(evictions[:], name)
	return Eviction(i), i >= 0
}

func (e Eviction) String() string { return evictions[e] }

// Options configures Open. Fingerprint and Local.Root are required.
type Options struct {
	// Fingerprint identifies every input of a row except the tokens before it. The fingerprint
	// is the parent of every sequence's first page.
	Fingerprint pagefile.Key

	// Identity is the input of the fingerprint, for people, tools and Reclaim. Identity is
	// written to manifest.json and never trusted. Nil writes an empty identity.
	Identity map[string]string

	// Origin says where the model is from. The local tier's manifest keeps it, and "several" of different ones.
	// "" is unknown.
	Origin string

	// Obsolete picks fingerprints, by identity and origin, whose models are gone: pages of theirs that were not
	// used within two minutes leave the local tier before all others. A collection waits for it, at most a second,
	// and not while an earlier call goes on. Nil picks none.
	Obsolete func(FingerprintUsage) bool

	// PageTokens is the number of tokens in a full page; 0 means 256.
	PageTokens int

	Eviction Eviction // of both tiers

	RAM    RAMConfig
	Local  TierConfig
	Remote TierConfig

	// RemoteTier is the remote tier if it is not a directory; Remote.Root is "" then. The
	// store closes RemoteTier, as does Open when it returns an error. Nil means a directory at
	// Remote.Root, or no remote tier.
	RemoteTier tier.Tier

	// ReadAheadBytes is the number of bytes that Recent.ReadAhead may read; 0 means none.
	ReadAheadBytes int64

	// LatestPages is the number of pages that Open's count keeps for Recent.Pages; 0 means none.
	LatestPages int

	// WritePerDay is the number of bytes that all processes may write to the local tier in one
	// UTC day. 0 means no limit. Pages beyond the limit are not stored.
	WritePerDay int64

	// ThroughPerDay lets pages be copied to the remote tier soon after they were stored, until all processes
	// that use that tier have written as many bytes to it in a UTC day, as far as recorded. 0 means that pages
	// reach the remote tier only when they leave the local one.
	ThroughPerDay int64

	// Compress stores each section of a new page in the lossless encoding that makes it smallest.
	// Pages in any encoding can be read with either value.
	Compress bool

	// CompressRemote does the same for pages on their way to the remote tier.
	CompressRemote bool

	// Cold makes pages lossy that move down to the remote tier; the zero value makes none. The K
	// and V rows of this store's pages must be little-endian f16.
	Cold ColdTypes

	// Now is the clock that tells when pages are used, and days; nil means time.Now. A simulation has a clock of
	// its own, which must not be ahead of time.Now: files from the future count as old.
	Now func() time.Time

	// FS is the filesystem; nil means the operating system's, which then follows no symbolic
	// link below a root.
	FS vfs.FS

	// Logger receives state changes; nil discards them.
	Logger *slog.Logger

	// Trouble is told of each page that the local tier should have stored: the error, or nil for a
	// page that was stored. It gets an ErrNoInodes or ErrCrowded with a page that was stored, for
	// which others had to leave although the budget has room. Nil means that Logger gets the
	// first error, and the first page after it. Trouble must not call the store.
	Trouble func(error)

	// RemoteTimeout bounds the time that a remote tier which does not answer adds to a look-up;
	// 0 means 250 ms. See Store.Find for one that answers.
	RemoteTimeout time.Duration

	// ReadTimeout bounds one step of a transfer of the remote tier, of at most 1 MiB; 0 means 5 s.
	ReadTimeout time.Duration

	// Timeout bounds one operation of a filesystem; see RootOptions.Timeout. 0 means no limit.
	Timeout time.Duration
}

// withDefaults replaces zero values and returns ErrOptions for impossible ones. Without
// fingerprint, as for a Root, the options need no fingerprint.
func (o Options) withDefaults(fingerprint bool) (Options, error) {
	o.PageTokens = cmp.Or(o.PageTokens, DefaultPageTokens)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.RemoteTimeout = cmp.Or(o.RemoteTimeout, DefaultRemoteTimeout)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, DefaultReadTimeout)
	if o.Now == nil {
		o.Now = time.Now
	}
	// Later changes of the working directory must not move a root. filepath.Abs also cleans
	// the path, as the checks of the root require.
	for _, root := range []*string{&o.Local.Root, &o.Remote.Root} {
		if *root == "" {
			continue
		}
		abs, err := filepath.Abs(*root)
		if err != nil {
			return o, fmt.Errorf("open store: find %s: %w", *root, err)
		}
		*root = abs
	}
	switch {
	case fingerprint && o.Fingerprint.IsZero():
		return o, fmt.Errorf("open store: Fingerprint is not set: %w", ErrOptions)
	case o.Local.Root == "":
		return o, fmt.Errorf("open store: Local.Root is not set: %w", ErrOptions)
	case o.Local.Root == o.Remote.Root:
		return o, fmt.Errorf("open store: local and remote root are both %s: %w", o.Local.Root, ErrOptions)
	case o.RemoteTier != nil && o.Remote.Root != "":
		return o, fmt.Errorf("open store: RemoteTier is set, and Remote.Root is %s: %w", o.Remote.Root, ErrOptions)
	case o.PageTokens < 1 || o.PageTokens > pagefile.MaxTokens:
		return o, fmt.Errorf("open store: PageTokens is %d, want 1 to %d: %w", o.PageTokens, pagefile.MaxTokens, ErrOptions)
	case o.RAM.BudgetBytes < 0 || o.Local.BudgetBytes < 0 || o.Remote.BudgetBytes < 0:
		return o, fmt.Errorf("open store: a budget is negative: %w", ErrOptions)
	case o.WritePerDay < 0 || o.ThroughPerDay < 0 || o.ReadAheadBytes < 0 || o.LatestPages < 0:
		return o, fmt.Errorf("open store: WritePerDay, ThroughPerDay, ReadAheadBytes or LatestPages is negative: %w", ErrOptions)
	case o.Eviction < 0 || int(o.Eviction) >= len(evictions):
		return o, fmt.Errorf("open store: Eviction is %d, want EvictByUse or EvictLRU: %w", int(o.Eviction), ErrOptions)
	case !o.Cold.valid():
		return o, fmt.Errorf("open store: Cold is %v, want lossy encodings of K and V: %w", o.Cold, ErrOptions)
	case o.RemoteTimeout < 0 || o.ReadTimeout < 0 || o.Timeout < 0:
		return o, fmt.Errorf("open store: a timeout is negative: %w", ErrOptions)
	}
	return o, nil
}

// ColdTypes are the encodings of pages that move down: encoding.Q8_0, encoding.Q4_0 or
// encoding.Int4 for K and for V. encoding.Raw, the zero value, keeps K or V lossless.
type ColdTypes struct{ K, V encoding.ID }

func (c ColdTypes) on() bool { return c.K.Lossy() || c.V.Lossy() }

func (c ColdTypes) valid() bool {
	return (c.K.Lossy() || c.K == encoding.Raw) && (c.V.Lossy() || c.V == encoding.Raw)
}
