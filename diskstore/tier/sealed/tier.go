package sealed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// ErrOtherKey reports a tier whose ledger was sealed with a key that is unknown here, or was not sealed.
var ErrOtherKey = errors.New("sealed: the tier has a ledger that no key of the key file opens: give each team's key an address of its own, or write the former key after the new one")

type sealedTier struct {
	inner tier.Tier
	keys  Keys
	log   *slog.Logger

	foreignFiles, foreignLedger sync.Once // said

	mu     sync.Mutex
	owners map[pagefile.Key]*key
}

// New returns a tier that keeps its files, sealed, in inner, which is an object store: what only a Disk gives is
// not used. keys has at least one key.
func New(inner tier.Tier, keys Keys, log *slog.Logger) tier.Tier {
	return &sealedTier{inner: inner, keys: keys, log: log, owners: make(map[pagefile.Key]*key)}
}

// String is that of the inner tier.
func (t *sealedTier) String() string { return fmt.Sprint(t.inner) }

// foreign says once that a file of another key was found.
func (t *sealedTier) foreign() {
	t.foreignFiles.Do(func() {
		t.log.Warn("kv tier has files that no key of the key file opens, they are left alone")
	})
}

// opened describes a sealed file as the plain one of a name.
func opened(sealed tier.Info, name pagefile.Name) tier.Info {
	sealed.Name, sealed.Bytes = name, plainBytes(sealed.Bytes)
	return sealed
}

// FindAtOnce is that of the inner tier.
func (t *sealedTier) FindAtOnce() int { return tier.FindAtOnce(t.inner) }

// Find asks for a former key's names where those of the current key are missing.
func (t *sealedTier) Find(ctx context.Context, names []pagefile.Name, leading bool) ([]tier.Info, error) {
	infos := make([]tier.Info, len(names))
	missing := make([]int, len(names))
	for i := range names {
		missing[i] = i
	}
	for _, k := range t.keys {
		ask := make([]pagefile.Name, len(missing))
		for j, i := range missing {
			ask[j] = k.name(names[i])
		}
		found, err := t.inner.Find(ctx, ask, leading && len(t.keys) == 1)
		still := missing[:0:0]
		for j, i := range missing {
			if j < len(found) && found[j].Found() {
				infos[i] = opened(found[j], names[i])
			} else {
				still = append(still, i)
			}
		}
		if missing = still; err != nil || len(missing) == 0 {
			return infos, err
		}
	}
	return infos, nil
}

func (t *sealedTier) Touch(ctx context.Context, name pagefile.Name, used time.Time) (err error) {
	for _, k := range t.keys {
		if err = t.inner.Touch(ctx, k.name(name), used); !errors.Is(err, tier.ErrNotFound) {
			break
		}
	}
	return err
}

// Note notes the use of the file of each key: there need be none.
func (t *sealedTier) Note(name pagefile.Name, used time.Time) (noted bool) {
	for _, k := range t.keys {
		noted = tier.Note(t.inner, k.name(name), used) || noted
	}
	return noted
}

// Lock locks the inner tier, for all keys.
func (t *sealedTier) Lock(ctx context.Context) (release func(), err error) {
	return tier.OnDisk(t.inner).Lock(ctx)
}

func (t *sealedTier) Now(ctx context.Context) (time.Time, error) {
	return tier.OnDisk(t.inner).Now(ctx)
}

func (t *sealedTier) Remove(ctx context.Context, judged tier.Info) (bool, error) {
	return t.take(ctx, judged, t.inner.Remove)
}

func (t *sealedTier) Quarantine(ctx context.Context, judged tier.Info, reason string) (bool, error) {
	return t.take(ctx, judged, func(ctx context.Context, judged tier.Info) (bool, error) {
		return t.inner.Quarantine(ctx, judged, reason)
	})
}

// take takes the judged file away, whichever key has sealed it.
func (t *sealedTier) take(ctx context.Context, judged tier.Info, away func(context.Context, tier.Info) (bool, error)) (taken bool, replaced error) {
	for _, k := range t.keys {
		sealed, err := t.judged(ctx, k, judged)
		if err != nil {
			return taken, err
		}
		ok, err := away(ctx, sealed)
		if taken = taken || ok; errors.Is(err, tier.ErrReplaced) {
			replaced = err
		} else if err != nil {
			return taken, err
		}
	}
	if taken {
		return true, nil
	}
	return false, replaced
}

// judged describes the sealed form of a judged file. Only a look tells the length of a damaged one.
func (t *sealedTier) judged(ctx context.Context, k *key, judged tier.Info) (tier.Info, error) {
	judged.Name = k.name(judged.Name)
	if judged.Used.IsZero() {
		return judged, nil
	}
	if judged.Bytes == damagedBytes {
		now, err := tier.Stat(ctx, t.inner, judged.Name)
		if err != nil && !errors.Is(err, tier.ErrNotFound) {
			return judged, err
		}
		if _, whole := plainLen(now.Bytes); !whole {
			judged.Bytes = now.Bytes
			return judged, nil
		}
	}
	judged.Bytes = sealedLen(judged.Bytes)
	return judged, nil
}

// Account seals the ledger. A ledger that a key here has sealed and that is damaged is none.
func (t *sealedTier) Account(ctx context.Context, change func([]byte, string) ([]byte, error)) ([]byte, error) {
	if change == nil {
		ledger, err := t.inner.Account(ctx, nil)
		if err != nil {
			return nil, err
		}
		return t.openLedger(ledger)
	}
	ledger, err := t.inner.Account(ctx, func(ledger []byte, id string) ([]byte, error) {
		content, err := t.openLedger(ledger)
		if err != nil {
			return nil, err
		}
		if content, err = change(content, id); err != nil {
			return nil, err
		}
		return t.keys[0].sealLedger(content), nil
	})
	if err != nil {
		return nil, err
	}
	return t.openLedger(ledger)
}

// openLedger returns the content of a ledger, or ErrOtherKey.
func (t *sealedTier) openLedger(ledger []byte) ([]byte, error) {
	if len(ledger) == 0 {
		return nil, nil
	}
	for _, k := range t.keys {
		if bytes.HasPrefix(ledger, k.begin()) {
			return k.openLedger(ledger), nil
		}
	}
	t.foreignLedger.Do(func() {
		t.log.Warn("kv tier stores nothing in the remote tier, whose ledger no key of the key file opens")
	})
	return nil, ErrOtherKey
}

func (t *sealedTier) Close() error { return t.inner.Close() }
