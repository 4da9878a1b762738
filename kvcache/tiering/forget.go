package tiering

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
)

const (
	// forgetPatience bounds Forget's wait: removing a model ends when its pages are gone,
	// except when there are very many.
	forgetPatience = 2 * time.Second

	// forgetTimeout bounds the removal; a remote directory may hang.
	forgetTimeout = 10 * time.Minute
)

// forgotten are the models and adapters that this server was told to forget.
var forgotten = newForgetting()

func newForgetting() *forgetting {
	return &forgetting{fingerprints: make(map[string]map[pagefile.Key]bool)}
}

// forgetting remembers the fingerprints that were removed. A runner that is still loaded may store more
// pages under such a fingerprint, whose manifest, and with it the identity, is gone.
type forgetting struct {
	mu           sync.Mutex
	last         <-chan struct{}                  // closed when all removals so far have ended
	fingerprints map[string]map[pagefile.Key]bool // by the SHA-256 of weights or adapter
}

// Forget removes the pages of models and adapters from both tiers. blobs are the paths of their files,
// of which those that still exist are another model's. Forget returns after forgetPatience at the latest
// and goes on in the background, and logs one line. The next start repeats a removal: see note.
func Forget(blobs ...string) {
	blobs = removed(blobs)
	if len(blobs) == 0 {
		return
	}
	if err := keepNote(blobs...); err != nil {
		slog.Warn("kv tier: pages that a removed model stores while it is still loaded would stay after a kill", "error", err)
	}
	await(forgotten.start(blobs, nil))
}

// ForgetLater is Forget for a caller that holds a lock: it does not wait. The end of the server
// waits instead: see [ClaimInstance].
func ForgetLater(blobs ...string) { forgotten.start(removed(blobs), nil) }

// await waits for a removal, for forgetPatience at the latest. A nil channel is none.
func await(removal <-chan struct{}) {
	if removal != nil {
		steady.Ended(removal, forgetPatience)
	}
}

// start removes pages of blobs that are gone, in the background, and returns a channel that is
// closed at the end. Removals take turns, since each lists the tiers. Where everything was
// removed, or nothing is to remove, start calls success, if there is one.
func (f *forgetting) start(blobs []string, success func()) <-chan struct{} {
	var gone []string
	for _, path := range blobs {
		digest, _ := digests.OfBlob(path)
		gone = append(gone, digest)
	}
	f.add(gone)
	done := make(chan struct{})
	f.mu.Lock()
	before := f.last
	f.last = done
	f.mu.Unlock()
	go func() {
		defer close(done)
		if before != nil {
			<-before
		}
		ctx, cancel := context.WithTimeout(context.Background(), forgetTimeout)
		defer cancel()
		if (len(gone) == 0 || f.remove(ctx, gone, slog.Default())) && success != nil {
			success()
		}
	}()
	return done
}

// removals is closed when all removals so far have ended; nil when there were none.
func (f *forgetting) removals() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// Forgotten reports whether one of these blobs was forgotten and has not come back since.
func Forgotten(blobs ...string) bool {
	return slices.ContainsFunc(blobs, func(path string) bool {
		digest, ok := digests.OfBlob(path)
		return ok && forgotten.has(digest) && isGone(path)
	})
}

func isGone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

func (f *forgetting) add(digests []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, digest := range digests {
		if f.fingerprints[digest] == nil {
			f.fingerprints[digest] = make(map[pagefile.Key]bool)
		}
	}
}

func (f *forgetting) has(digest string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fingerprints[digest] != nil
}

// remove reports whether all pages of the digests were removed, from both tiers.
func (f *forgetting) remove(ctx context.Context, digests []string, log *slog.Logger) bool {
	log = log.With("weights", strings.Join(digests, ","))
	report, err := f.collect(ctx, digests, log)
	if err = errors.Join(err, report.RemoteErr); err != nil {
		log.Warn("kv tier: could not remove all pages of a model that was removed", "error", err)
	}
	local, remote := report.Local, report.Remote
	if pages := local.Pages + local.Tails + remote.Pages + remote.Tails; pages > 0 {
		log.Info("kv tier: removed the pages of a model that was removed", "pages", pages, "bytes", format.HumanBytes(local.Bytes+remote.Bytes))
	}
	return err == nil
}

func (f *forgetting) collect(ctx context.Context, digests []string, log *slog.Logger) (diskstore.GCReport, error) {
	c, err := tierenv.FromEnvironment(slog.New(slog.DiscardHandler)) // runners repeat its warnings
	if err != nil {
		return diskstore.GCReport{}, err
	}
	if err := c.PrepareRoot(); err != nil {
		return diskstore.GCReport{}, err
	}
	root, err := diskstore.OpenRoot(ctx, diskstore.RootOptions{
		Local:  diskstore.TierConfig{Root: c.Local, BudgetBytes: c.LocalBytes},
		Remote: c.RemoteConfig(),
		Logger: log,
	})
	if err != nil {
		return diskstore.GCReport{}, err
	}
	defer root.Close()
	report, err := root.GC(ctx, diskstore.GCOptions{Fingerprints: func(use diskstore.FingerprintUsage) bool {
		return f.picks(use, digests, c.Namespace)
	}})
	known := func(fingerprint pagefile.Key) bool { return f.knows(fingerprint, digests) }
	err = errors.Join(err, collect.Forget(ctx, c.Local, func(m telemetry.Model) bool {
		fingerprint, _ := pagefile.ParseKey(m.Fingerprint)
		ours := m.Namespace == c.Namespace && slices.Contains(digests, m.Weights) || known(fingerprint)
		return ours || m == telemetry.Model{} // nobody knows of which model these are
	}))
	// a damaged page also holds a prompt
	if _, dropErr := root.DropQuarantined(ctx, known, false); report.RemoteErr == nil {
		err = errors.Join(err, dropErr)
	}
	return report, err
}

// picks reports whether a fingerprint's pages were computed with one of the digests, in this
// namespace: pages of other namespaces belong to others.
func (f *forgetting) picks(use diskstore.FingerprintUsage, digests []string, namespace string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	files := append(strings.Split(use.Identity[tierenv.KeyAdapters], ","), use.Identity[tierenv.KeyWeights])
	picked := false
	for _, digest := range digests {
		known := f.fingerprints[digest]
		if slices.Contains(files, digest) && use.Identity[tierenv.KeyNamespace] == namespace {
			known[use.Fingerprint] = true
		}
		picked = picked || known[use.Fingerprint]
	}
	return picked
}

// knows reports whether pages of a fingerprint were picked for one of the digests.
func (f *forgetting) knows(fingerprint pagefile.Key, digests []string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(digests, func(digest string) bool { return f.fingerprints[digest][fingerprint] })
}
