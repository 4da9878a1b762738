package tierenv

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

// RemoteConfig is the remote tier, whose root is "" for an engine.
func (c Config) RemoteConfig() diskstore.TierConfig {
	if c.Address != "" {
		return diskstore.TierConfig{BudgetBytes: c.RemoteBytes}
	}
	return diskstore.TierConfig{Root: c.Remote, BudgetBytes: c.RemoteBytes}
}

// objectStoreTimeout is the time for which a look-up waits for an object store: a few of 100 requests to one far away
// take some hundred milliseconds.
const objectStoreTimeout = time.Second

// remoteTimeout is zero for that of any store.
func (c Config) remoteTimeout() time.Duration {
	if strings.HasPrefix(c.Address, "s3://") {
		return objectStoreTimeout
	}
	return 0
}

// StoreOptions are the options of a store with these settings, for any model. An engine's tier is the caller's to open.
func (c Config) StoreOptions() diskstore.Options {
	return diskstore.Options{
		PageTokens:     c.PageTokens,
		Local:          diskstore.TierConfig{Root: c.Local, BudgetBytes: c.LocalBytes},
		Remote:         c.RemoteConfig(),
		RemoteTimeout:  c.remoteTimeout(),
		RAM:            diskstore.RAMConfig{BudgetBytes: c.RAMBytes},
		WritePerDay:    c.WriteBytesPerDay,
		ThroughPerDay:  c.ShareBytesPerDay,
		ReadAheadBytes: c.ReadAheadBytes,
		Eviction:       c.Eviction,
		Compress:       c.Compress,
		CompressRemote: c.CompressRemote,
		Obsolete:       Obsolete,
	}
}

// Origin is [diskstore.Options.Origin] for a model's file: the folder of Ollama's blobs that has it, or the file
// itself. Another container, or a disk that is not mounted, may have another folder there, with another inode.
func Origin(model string) string {
	blobs := filepath.Dir(model)
	_, err := os.Stat(filepath.Join(filepath.Dir(blobs), "manifests"))
	state, stateErr := digests.StateOf(blobs)
	if _, blob := digests.OfBlob(model); !blob || !filepath.IsAbs(model) || err != nil || stateErr != nil {
		return model
	}
	return fmt.Sprintf("%d %s", state.Inode, blobs)
}

// Obsolete reports whether Ollama has deleted a model's weights: the folder of the origin is there, with blobs of
// others. Weights from elsewhere, or from a folder that cannot be read, are not obsolete.
func Obsolete(use diskstore.FingerprintUsage) bool {
	_, blobs, _ := strings.Cut(use.Origin, " ")
	if !filepath.IsAbs(blobs) {
		return false
	}
	weights := filepath.Join(blobs, "sha256-"+use.Identity[KeyWeights])
	if _, err := os.Lstat(weights); !errors.Is(err, fs.ErrNotExist) || Origin(weights) != use.Origin {
		return false
	}
	entries, err := os.ReadDir(blobs)
	return err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), "sha256-") })
}

// PrepareRoot makes the local root, and refuses an unsafe one: K/V is the prompt in another form.
func (c Config) PrepareRoot() error { return c.prepareRoot(vfs.OS) }

func (c Config) prepareRoot(fsys vfs.FS) error {
	roots := []string{c.Local}
	if c.Instance != "" { // a user who may write to a parent could replace Local
		instances := filepath.Dir(c.Local)
		roots = []string{filepath.Dir(instances), instances, c.Local}
	}
	for _, root := range roots {
		if err := makeRoot(fsys, root); err != nil {
			return fmt.Errorf("make the page store's directory: %w; set OLLAMA_KV_TIER_LOCAL to one this user may write", err)
		}
		if err := dir.CheckRoot(fsys, root); err != nil {
			return err
		}
	}
	return nil
}

// makeRoot makes a directory and those above it, and makes their names durable: a power cut that takes
// one takes every page, and a store syncs only the names of directories that it has made.
func makeRoot(fsys vfs.FS, root string) error {
	var above []string // of each that is missing
	for at := root; ; at = filepath.Dir(at) {
		if _, err := fsys.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		above = append(above, filepath.Dir(at))
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	for _, dir := range above {
		// The topmost may be a link, which SyncDir refuses, and one that this user may not read.
		if err := fsys.SyncDir(dir + string(filepath.Separator) + "."); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// OpenRates returns the rates that earlier processes on the local root observed: of computing
// with a fingerprint and a placement, and of reading from each directory. A placement names
// all that decides the cost of a token, and not its rows.
func (c Config) OpenRates(fingerprint pagefile.Key, placement string, log *slog.Logger) *rates.Rates {
	digest := sha256.Sum256([]byte(placement)) // a placement may be long
	computing := fmt.Sprintf("%s %x", fingerprint, digest[:8])
	known, err := rates.Open(filepath.Join(c.Local, "rates.json"), computing, map[string]string{
		tier.Local:  c.Local,
		tier.Remote: c.Remote,
	})
	if err != nil {
		log.Debug("kv tier: rates of earlier runs are not known", "error", err)
	}
	return known
}

// reclaimAfter is the time that pages of another engine stay after their last use. Servers
// of different versions may share a root, and a new version may be rolled back.
const reclaimAfter = 24 * time.Hour

// reclaimRemoteAfter is the same time in a remote tier, which keeps pages for longer, and for
// servers that may have another version for weeks.
const reclaimRemoteAfter = 30 * 24 * time.Hour

// Reclaim removes the pages of a model by other versions of the engine that are unused for a
// day, or for 30 days in a remote tier: no fingerprint of this engine asks for them. Reclaim logs the numbers of pages that it
// removed and left. identity is the identity of the store's own pages, and usage a result of its
// Survey. Closing the store ends Reclaim.
func Reclaim(ctx context.Context, store *diskstore.Store, usage diskstore.Usage, identity map[string]string, log *slog.Logger) {
	var kept int
	var keptBytes int64
	reclaimed, err := store.Reclaim(ctx, usage, func(other diskstore.FingerprintUsage) bool {
		if !supersedes(identity, other.Identity) {
			return false
		}
		after := reclaimAfter
		if other.Tier == tier.Remote {
			after = reclaimRemoteAfter
		}
		if other.Unused < after {
			kept += other.Pages + other.Tails
			keptBytes += other.Bytes
			return false
		}
		return true
	})
	if ctx.Err() != nil || errors.Is(err, context.Canceled) || errors.Is(err, tier.ErrClosed) {
		return
	}
	if err != nil {
		log.Warn("kv tier: could not reclaim pages of another version of the engine", "error", err)
	}
	if reclaimed.Fingerprints > 0 {
		log.Info("kv tier: reclaimed pages that another version of the engine left", "pages", reclaimed.Pages, "bytes", format.HumanBytes(reclaimed.Bytes))
	}
	if kept > 0 {
		log.Info("kv tier: found pages of another version of the engine; they are removed a day after their last use, from the remote directory 30 days after", "pages", kept, "bytes", format.HumanBytes(keptBytes))
	}
}

// supersedes reports whether pages of other belong to the same model on the same kind of
// machine, computed by other engine code.
func supersedes(mine, other map[string]string) bool {
	for _, key := range []string{KeyWeights, KeyAdapters, KeyNumerics, KeyNamespace} {
		if mine[key] != other[key] {
			return false
		}
	}
	return mine[KeyEngine] != other[KeyEngine] || mine[KeySchema] != other[KeySchema]
}

// FillReport adds the tiers and the counters of a store to the report of the process that opened it.
func (c Config) FillReport(r *telemetry.Report, st diskstore.Stats) {
	c.fillTiers(r, &st)
	c.fillMoves(r, &st)
	for series, n := range map[string]uint64{
		"ollama_kv_prefetched_pages_total":                                    st.AheadPages,
		"ollama_kv_prefetched_bytes_total":                                    st.AheadBytes,
		"ollama_kv_prefetched_used_pages_total":                               st.AheadUsed,
		"ollama_kv_encoded_raw_bytes_total":                                   st.RawBytes,
		"ollama_kv_encoded_bytes_total":                                       st.WroteBytes,
		"ollama_kv_damaged_pages_total":                                       st.Damaged,
		"ollama_kv_write_capped_pages_total":                                  st.WriteCaps,
		telemetry.Series("ollama_kv_store_errors_total", "operation", "put"):  st.PutErrors,
		telemetry.Series("ollama_kv_store_errors_total", "operation", "tier"): st.TierErrors,
	} {
		r.Totals[series] = float64(n)
	}
	r.Memory = append(r.Memory, telemetry.Memory{Name: "pages being read", Bytes: st.WholeBytes})
	if c.RAMBytes > 0 {
		r.Memory = append(r.Memory, telemetry.Memory{Name: "pages in memory", Bytes: st.RAM.Bytes, Limit: st.RAMLimit})
	}
}

func (c Config) fillTiers(r *telemetry.Report, st *diskstore.Stats) {
	tierOf := func(name, root string, of diskstore.TierStats) telemetry.Tier {
		return telemetry.Tier{Name: name, Root: root, Pages: of.Pages, Tails: of.Tails, Bytes: of.Bytes, Down: of.Down}
	}
	if c.RAMBytes > 0 {
		ram := tierOf(telemetry.PlaceRAM, "", st.RAM)
		ram.Booked, ram.Budget = st.RAM.Bytes, st.RAMLimit
		r.Tiers = append(r.Tiers, ram)
	}
	local := tierOf(telemetry.PlaceLocal, c.Local, st.Local)
	local.Booked, local.Budget = st.LocalBooked, c.LocalBytes
	local.WrittenToday, local.WriteCap, local.Quarantined = st.LocalWritten, st.WriteCap, int(st.LocalQuarantined)
	r.Tiers = append(r.Tiers, local)
	if c.Remote != "" {
		remote := tierOf(telemetry.PlaceRemote, c.Remote, st.Remote)
		remote.Booked, remote.Budget = st.RemoteBooked, c.RemoteBytes
		remote.WrittenToday, remote.Quarantined = st.RemoteWritten, int(st.RemoteQuarantined)
		r.Tiers = append(r.Tiers, remote)
	}
}

// fillMoves adds the moves between tiers. Those into slots are counted where slots are.
func (c Config) fillMoves(r *telemetry.Report, st *diskstore.Stats) {
	move := func(from, to string, n uint64) {
		r.Totals[telemetry.Series("ollama_kv_page_moves_total", "from", from, "to", to)] = float64(n)
	}
	move(telemetry.PlaceSlot, telemetry.PlaceLocal, st.Puts)
	move(telemetry.PlaceLocal, telemetry.PlaceNone, st.LocalEvicted)
	returned := func(room string, n uint64) {
		r.Totals[telemetry.Series("ollama_kv_returned_pages_total", "room", room)] = float64(n)
	}
	returned("2x", st.ReturnedTwice)
	returned("4x", st.ReturnedFourTimes)
	returned("more", st.ReturnedMore)
	if c.RAMBytes > 0 {
		move(telemetry.PlaceSlot, telemetry.PlaceRAM, st.RAMStored)
		move(telemetry.PlaceLocal, telemetry.PlaceRAM, st.RAMFromLocal)
		move(telemetry.PlaceRAM, telemetry.PlaceNone, st.RAMEvicted)
	}
	if c.Remote == "" {
		return
	}
	move(telemetry.PlaceLocal, telemetry.PlaceRemote, st.Demoted)
	r.Totals["ollama_kv_shared_pages_total"] = float64(st.ThroughPages)
	r.Totals["ollama_kv_shared_bytes_total"] = float64(st.ThroughBytes)
	r.Totals["ollama_kv_share_errors_total"] = float64(st.ThroughFailed)
	move(telemetry.PlaceRemote, telemetry.PlaceLocal, st.Promoted)
	move(telemetry.PlaceRemote, telemetry.PlaceNone, st.RemoteEvicted)
	if c.RAMBytes > 0 {
		move(telemetry.PlaceRemote, telemetry.PlaceRAM, st.RAMFromRemote)
	}
}

// Allocation lists the tiers for a log line: the directory and the budget of each, and the number of
// tokens that fit uncompressed, where a token's number of bytes is known.
func (c Config) Allocation(tokenBytes int64) []any {
	var attrs []any
	tier := func(name string, bytes int64, all string) {
		if bytes == 0 {
			attrs = append(attrs, name+"_budget", all)
			return
		}
		attrs = append(attrs, name+"_budget", format.HumanBytes(bytes))
		if tokenBytes > 0 {
			attrs = append(attrs, name+"_tokens", bytes/tokenBytes)
		}
	}
	const disk = "all but 5% of the disk"
	attrs = append(attrs, "local", c.Local)
	tier("local", c.LocalBytes, disk)
	if c.RAMBytes > 0 {
		tier("ram", c.RAMBytes, "")
	}
	if c.Address != "" {
		attrs = append(attrs, "remote", c.Remote)
		tier("remote", c.RemoteBytes, "no limit but the engine's own")
	} else if c.Remote != "" {
		attrs = append(attrs, "remote", c.Remote)
		tier("remote", c.RemoteBytes, disk)
	}
	return attrs
}

// Trouble returns the function for [diskstore.Options.Trouble] that tells a Watch.
func Trouble(w *unstored.Watch) func(error) {
	return func(err error) {
		switch {
		case err == nil:
			w.Stored()
		case errors.Is(err, tier.ErrClosed):
		case errors.Is(err, ledger.ErrNotCounted): // soon, unless the disk is slow
			w.Doubt(telemetry.ObstacleSlow, err)
		default:
			w.Lost(ObstacleOf(err), err)
		}
	}
}

// obstacles are causes by error, the first one that fits being the cause.
var obstacles = []struct {
	err   error
	cause telemetry.Obstacle
}{
	{tier.ErrRootSymlink, telemetry.ObstacleRoot},
	{tier.ErrRootNotDir, telemetry.ObstacleRoot},
	{tier.ErrRootOwner, telemetry.ObstacleRoot},
	{tier.ErrRootMode, telemetry.ObstacleRoot},
	{tier.ErrRootMissing, telemetry.ObstacleRoot},
	{diskstore.ErrNoInodes, telemetry.ObstacleInodes},
	{diskstore.ErrCrowded, telemetry.ObstacleFull},
	{ledger.ErrWriteCap, telemetry.ObstacleWriteCap},
	{syscall.ENAMETOOLONG, telemetry.ObstacleName},
	{steady.ErrHung, telemetry.ObstacleHung},
	{syscall.ENOTDIR, telemetry.ObstacleRoot},
	{fs.ErrPermission, telemetry.ObstacleDenied},
}

// ObstacleOf is the cause of an error of the page store, its directory or the settings.
func ObstacleOf(err error) telemetry.Obstacle {
	switch {
	case vfs.IsNoSpace(err):
		return telemetry.ObstacleFull
	case vfs.IsReadOnly(err):
		return telemetry.ObstacleReadOnly
	}
	for _, o := range obstacles {
		if errors.Is(err, o.err) {
			return o.cause
		}
	}
	if errors.Is(err, tier.ErrNoSpace) {
		return telemetry.ObstacleBudget // the disk would have room
	}
	return telemetry.ObstacleOther
}
