package sealed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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

// turnsMost bounds the look-ups of a chain whose pages two keys have sealed by turns, as those of a conversation that
// went on after a rotation: pages behind the last turn are stored again.
const turnsMost = 4

// Find asks for a former key's names where those of the current key are missing: of a chain, behind those that one
// key has sealed.
func (t *sealedTier) Find(ctx context.Context, names []pagefile.Name, leading bool) ([]tier.Info, error) {
	infos := make([]tier.Info, len(names))
	if leading {
		at, none := 0, 0
		for turn := 0; turn < turnsMost && at < len(names) && none < len(t.keys); turn++ {
			n, err := t.find(ctx, t.keys[turn%len(t.keys)], names[at:], infos[at:], true)
			if err != nil {
				return infos, err
			}
			if at += n; n > 0 {
				none = 0
			}
			none++
		}
		return infos, nil
	}
	for _, k := range t.keys {
		if n, err := t.find(ctx, k, names, infos, false); err != nil || n == len(names) {
			return infos, err
		}
	}
	return infos, nil
}

// find looks for the names of one key of which infos has nothing, and returns the number of those that are found from
// the first one on.
func (t *sealedTier) find(ctx context.Context, k *key, names []pagefile.Name, infos []tier.Info, leading bool) (int, error) {
	var missing []int
	var ask []pagefile.Name
	for i, name := range names {
		if !infos[i].Found() {
			missing, ask = append(missing, i), append(ask, k.name(name))
		}
	}
	found, err := t.inner.Find(ctx, ask, leading)
	for j, info := range found {
		if info.Found() {
			infos[missing[j]] = opened(info, names[missing[j]])
		} else if leading {
			break
		}
	}
	n := slices.IndexFunc(infos, func(i tier.Info) bool { return !i.Found() })
	if n < 0 {
		n = len(infos)
	}
	return n, err
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
