package diskstore

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/vfs"
)

// ErrOptions reports an Options value that cannot work.
var ErrOptions = errors.New("diskstore: bad options")

// Defaults for the zero values of Options.
const (
	DefaultPageTokens    = 256
	DefaultRemoteTimeout = 250 * time.Millisecond
	DefaultReadTimeout   = 5 * time.Second
)

// TierConfig says where a tier is and how much it may hold.
type TierConfig struct {
	// Root is the tier's directory. The local root is created when missing.
	// The remote root is not: a mount point whose mount is gone must not be
	// filled. "" as a remote root means there is no remote tier.
	Root string

	// BudgetBytes is how much disk all files below Root may occupy, whatever
	// their fingerprint and whichever process wrote them. 0 means no budget:
	// only 5 % of the filesystem is kept free.
	BudgetBytes int64
}

// RAMConfig says how much memory may hold decoded pages.
type RAMConfig struct {
	// BudgetBytes is for all stores with the same Server and local root
	// together, the bookkeeping included; each takes an equal part. 0 means
	// that nothing is kept in memory.
	BudgetBytes int64

	// Server names who shares the budget: the processes of one server. "" is a
	// name like any other.
	Server string
}

// Options configures Open. Fingerprint and Local.Root are required.
type Options struct {
	// Fingerprint identifies everything a row depends on except the tokens
	// before it. It is the parent of every sequence's first page.
	Fingerprint pagefile.Key

	// Identity is what the fingerprint was computed from, for people, tools
	// and Reclaim. It is written to manifest.json and never trusted. Nil
	// writes an empty identity.
	Identity map[string]string

	// PageTokens is the number of tokens in a full page; 0 means 256.
	PageTokens int

	RAM    RAMConfig
	Local  TierConfig
	Remote TierConfig

	// RemoteTier is the remote tier where that is no directory, and Remote.Root is "". The
	// store closes it. Nil means a directory at Remote.Root, or no remote tier.
	RemoteTier tier.Tier

	// ReadAheadBytes is how much ReadAhead may read; 0 means nothing.
	ReadAheadBytes int64

	// WritePerDay is how many bytes all processes may write to the local tier in
	// one UTC day. 0 means any number. Pages over it are not stored.
	WritePerDay int64

	// Compress stores a section with zstd where that makes it smaller. Pages
	// of both encodings can be read whatever Compress says.
	Compress bool

	// FS is the filesystem; nil means the operating system's, which then follows
	// no symbolic link below a root.
	FS vfs.FS

	// Logger receives state changes; nil discards them.
	Logger *slog.Logger

	// RemoteTimeout is how much longer a lookup may take because there is a
	// remote tier; 0 means 250 ms.
	RemoteTimeout time.Duration

	// ReadTimeout is how long the remote tier may take for one step of a
	// transfer, of at most 1 MiB; 0 means 5 s.
	ReadTimeout time.Duration

	// Timeout is how long one operation of a filesystem may take; see
	// RootOptions.Timeout. 0 means any time.
	Timeout time.Duration
}

// String describes the options in one line, for a log or a bug report.
func (o Options) String() string {
	return fmt.Sprintf("{Fingerprint:%.12s PageTokens:%d RAM:{BudgetBytes:%d} Local:{Root:%q BudgetBytes:%d} Remote:{Root:%q BudgetBytes:%d} ReadAheadBytes:%d WritePerDay:%d Compress:%t RemoteTimeout:%v ReadTimeout:%v}",
		o.Fingerprint.String(), o.PageTokens, o.RAM.BudgetBytes, o.Local.Root, o.Local.BudgetBytes, o.Remote.Root, o.Remote.BudgetBytes,
		o.ReadAheadBytes, o.WritePerDay, o.Compress, o.RemoteTimeout, o.ReadTimeout)
}

// withDefaults replaces zero values and returns ErrOptions for impossible ones.
// A Root has no fingerprint.
func (o Options) withDefaults(fingerprint bool) (Options, error) {
	if o.PageTokens == 0 {
		o.PageTokens = DefaultPageTokens
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.RemoteTimeout == 0 {
		o.RemoteTimeout = DefaultRemoteTimeout
	}
	if o.ReadTimeout == 0 {
		o.ReadTimeout = DefaultReadTimeout
	}
	// Later changes of the working directory must not move a root. filepath.Abs
	// also cleans the path, which the checks of the root rely on.
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
	case o.WritePerDay < 0 || o.ReadAheadBytes < 0:
		return o, fmt.Errorf("open store: WritePerDay or ReadAheadBytes is negative: %w", ErrOptions)
	case o.RemoteTimeout < 0 || o.ReadTimeout < 0:
		return o, fmt.Errorf("open store: a timeout is negative: %w", ErrOptions)
	}
	return o, nil
}
