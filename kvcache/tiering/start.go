package tiering

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"time"

	"github.com/ollama/ollama/format"
	"github.com/ollama/ollama/fs"
	ollama "github.com/ollama/ollama/kvcache"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/memory"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/kvcache"
	"github.com/kvtier/kvtier/kvcache/runs"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/unstored"
	"github.com/kvtier/kvtier/telemetry/why"
)

// Model describes a model that the runner is about to load for good.
type Model struct {
	// Path is the GGUF file; Adapters are the files of its adapters.
	Path     string
	Adapters []string
	// Architecture is the name in the GGUF file.
	Architecture string
	// Config is the model's configuration.
	Config fs.Config
	// Media gives images their identity.
	Media kvcache.MediaDigest
	// Batch is the most tokens of a batch, except where an image has more.
	Batch int
	// Cells is the number of tokens that all slots have room for; 0 where the runner does not
	// say. Only OLLAMA_KV_TIER_SPLIT needs it.
	Cells int
	// States is the state of recurrent layers, nil in a model without any.
	States kvcache.States
	// CacheType is the effective type of the cache, such as "f16", perhaps not the requested one.
	CacheType string
	// Numerics lists, as the backend reports them, the causes of different low bits:
	// devices, features, flash attention.
	Numerics string
	// Placement names the other causes of different compute costs: see [PlacementOf].
	Placement string
	// Fills: a slot is filled with the latest conversation while the model loads.
	Fills bool
	// Paged: K and V are in pages that paged attention holds.
	Paged bool
	// Unsupported is the reason why this model's cache cannot be tiered, or empty.
	Unsupported string
}

// Enabled is [tierenv.Enabled], for the runner.
func Enabled() bool { return tierenv.Enabled() }

// Start wraps a model's cache, which consists of the caches in rows. Start returns nil and
// logs the reason in one line if the model cannot be tiered.
func Start(m Model, cache ollama.Cache, rows []kvcache.Rows) *kvcache.TieredCausal {
	log := slog.Default()
	tiered, _, err := start(m, cache, rows, log)
	if err != nil {
		notTiered(m, err, log)
		return nil
	}
	return tiered
}

// start does as Start, and also returns the source of the model's reports.
func start(m Model, cache ollama.Cache, rows []kvcache.Rows, log *slog.Logger) (*kvcache.TieredCausal, *telemetry.Source, error) {
	config, arch, err := settle(&m, rows, log)
	if err != nil {
		return nil, nil, err
	}
	files := digests.Open(filepath.Join(config.Local, "digests.json"))
	identity, err := identityOf(m, config, files)
	if err != nil {
		return nil, nil, err
	}
	if err := files.Save(); err != nil {
		log.Debug("kv tier: digests of large files are not remembered", "error", err)
	}

	key := tierenv.Fingerprint(identity)
	if config.Split != nil {
		total, err := contextBytes(m)
		config = config.ApplySplit(key.String(), total, m.hotSets(), err, log)
	}
	meter := new(telemetry.Meter)
	watch := unstored.New(log, meter)
	options := config.StoreOptions()
	options.Fingerprint, options.Identity, options.Logger, options.Trouble = key, identity, log, tierenv.Trouble(watch)
	options.RAM.Server = server()
	options.Cold = config.ColdFor(notCold(m, rows), log)
	found := runsFor(m, arch, config, log)
	if found != nil {
		options.LatestPages = latestTokens / config.PageTokens
	}
	store, err := diskstore.Open(context.Background(), options)
	if err != nil {
		return nil, nil, err
	}
	layers := arch.layersOf(m.Config)
	s := &modelStore{Store: store, config: config, identity: identity, runs: found, cold: options.Cold, filled: make(chan struct{}), latest: make(chan []int32, 1), log: log}
	s.tokenBytes = kvcache.TokenBytes(rows, m.States, layers)
	s.announce(m.Fills && m.States == nil)
	ensureProcessors()
	tiered := kvcache.New(cache, rows, kvcache.Options{
		Store:         s,
		Fingerprint:   key,
		Layers:        layers,
		Media:         m.Media,
		Backwards:     arch.backwards,
		Reach:         arch.reach(m.Batch),
		States:        m.States,
		Rates:         config.OpenRates(key, m.Placement, log),
		PageTokens:    config.PageTokens,
		Runs:          s.runs,
		RunsFilled:    s.filled,
		Lossy:         options.Cold != diskstore.ColdTypes{},
		TailDelay:     tailDelayOf(config),
		Latest:        s.latest,
		QueuedBytes:   queuedBytes(memory.Available()),
		Poison:        config.Test,
		AlwaysRestore: config.Test,
		Meter:         meter,
		Recents:       why.NewRecents(),
		Unstored:      watch,
		Logger:        log,
	})
	source := s.source(m, meter, func(r *telemetry.Report) {
		tiered.Fill(r)
		watch.Fill(r)
	})
	s.nudge = make(chan chan<- struct{}, 1)
	s.lastReport = push(s.config.Local, source, collect.Options{Logger: log, Nudge: s.nudge})
	return tiered, source, nil
}

// settle reads a model's settings and prepares the local directory. An error is why it is not tiered.
func settle(m *Model, rows []kvcache.Rows, log *slog.Logger) (tierenv.Config, architecture, error) {
	config, err := tierenv.Settle(log, log)
	if err != nil {
		return config, architecture{}, refusal{telemetry.ObstacleSetting, err}
	}
	if config.Address != "" {
		log.Warn("kv tier: the patched Ollama uses no remote tier but a directory, pages stay local", "remote", config.Remote)
		config.Remote, config.Address = "", ""
	}
	arch, known := architectures[m.Architecture]
	if m.Unsupported == "" && !known {
		m.Unsupported = "it may keep state outside its cache"
	}
	if m.Unsupported == "" {
		config.PageTokens, err = pageTokensFor(rows, config.PageTokens)
		if err != nil {
			m.Unsupported = err.Error()
		}
	}
	if m.Unsupported != "" {
		err := fmt.Errorf("architecture %q is not supported yet: %s", m.Architecture, m.Unsupported)
		return config, arch, refusal{m.unsupported(), err}
	}
	if !arch.media {
		m.Media = nil
	}
	return config, arch, config.PrepareRoot()
}

// notCold is the reason for which a model cannot have lossy pages, "" if it can: only rows of f16 are
// made lossy, and a window or a state is used at one position only.
func notCold(m Model, rows []kvcache.Rows) string {
	switch {
	case m.CacheType != "f16":
		return fmt.Sprintf("the type of the KV cache is %s, and not f16", m.CacheType)
	case m.States != nil:
		return "the model has recurrent layers"
	}
	for _, r := range rows {
		if _, memory := r.RowWindow(); memory != math.MaxInt32 {
			return "the model has layers with a window"
		}
	}
	return ""
}

// tailDelay is the time for which a tail waits for the conversation's next turn. Programs that
// answer the model by themselves, such as coding agents, are mostly quicker.
const tailDelay = 2 * time.Second

// tailDelayOf is tailDelay, except in tests, which wait for every tail.
func tailDelayOf(config tierenv.Config) time.Duration {
	if config.Test {
		return 0
	}
	return tailDelay
}

// queuedBytes bounds the memory for pages that wait for a disk: an eighth of the available
// bytes, and between 64 MiB and 1 GiB.
func queuedBytes(available uint64, err error) int64 {
	const least, most = 64 << 20, 1 << 30
	if err != nil {
		return most // other systems than Linux do not say
	}
	return int64(min(max(available/8, least), most))
}

// modelStore is the page store of one loaded model, with its background work.
type modelStore struct {
	*diskstore.Store
	config   tierenv.Config
	cold     diskstore.ColdTypes
	identity map[string]string
	runs     *runs.Index   // nil: only exact text is reused
	filled   chan struct{} // closed when runs has the latest conversations
	latest   chan []int32  // gets the latest conversation
	log      *slog.Logger

	tokenBytes int64 // of K/V of a token, 0 if not known

	cancel  context.CancelFunc
	running engine.Background

	nudge      chan chan<- struct{} // asks for a report soon
	lastReport func()               // ends the reports
}

// announce starts background work that serving does not need: counting stored pages,
// reclaiming pages that no engine can use any more, reading ahead, and indexing runs.
func (s *modelStore) announce(fills bool) {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.running.Spawn(func() {
		usage, err := s.Survey(ctx)
		s.logUsage(ctx, usage, err)
		tierenv.Reclaim(ctx, s.Store, usage, s.identity, s.log)
	})
	s.running.Spawn(func() {
		if fills {
			s.nameLatest(ctx)
		}
		s.readAhead(ctx)
	})
	s.running.Spawn(func() {
		defer close(s.filled)
		s.indexRuns(ctx)
	})
}

// Close ends the background work, sends the last report, and closes the store. Nothing waits for
// the report but its own bounded time.
func (s *modelStore) Close() error {
	s.cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.lastReport()
	}()
	s.running.Wait()
	err := s.Store.Close()
	<-done
	return err
}

// logUsage logs the one line per loaded model with its settings and stored pages.
func (s *modelStore) logUsage(ctx context.Context, usage diskstore.Usage, err error) {
	if ctx.Err() != nil {
		return
	}
	attrs := append(s.config.Allocation(s.tokenBytes),
		"page_tokens", s.config.PageTokens,
		"compress", s.config.Compress,
		"fingerprint", tierenv.Fingerprint(s.identity).String()[:12],
		"cache_type", s.identity[tierenv.KeyCacheType],
		"pages", usage.Local.Pages+usage.Remote.Pages,
		"tails", usage.Local.Tails+usage.Remote.Tails,
		"bytes", format.HumanBytes(usage.Local.Bytes+usage.Remote.Bytes),
		"store_bytes", format.HumanBytes(usage.Local.RootBytes+usage.Remote.RootBytes),
	)
	if s.cold != (diskstore.ColdTypes{}) {
		attrs = append(attrs, "cold_type", tierenv.ColdText(s.cold), "lossy_pages", usage.Local.Lossy.Pages+usage.Remote.Lossy.Pages)
	}
	if s.config.WriteBytesPerDay > 0 {
		attrs = append(attrs, "write_per_day", format.HumanBytes(s.config.WriteBytesPerDay),
			"written_today", format.HumanBytes(s.Stats().LocalWritten))
	}
	if usage.RemoteErr != nil {
		attrs = append(attrs, "remote_error", usage.RemoteErr)
	}
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	s.log.Info("kv tier: on", attrs...)
}
