//go:build unix

package front

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/remote"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier"
	"github.com/kvtier/kvtier/llamatier/identity"
	"github.com/kvtier/kvtier/llamatier/proxy"
	"github.com/kvtier/kvtier/llamatier/slotfile"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// disk is the local disk as the daemon uses it.
type disk struct {
	config tierenv.Config
	runs   *runs
	files  *slotfile.Folder // of the engine; nil if there is none
}

// prepareDisk reads the settings, and makes the directory of the pages, and that of large files
// of the engine. It returns errPlain if daemons of the model die again and again.
func prepareDisk(model string, files *slotfile.Files, log *slog.Logger) (*disk, error) {
	config, err := tierenv.Settle(log, log)
	if err != nil {
		return nil, err
	}
	if err := config.PrepareRoot(); err != nil {
		return nil, err
	}
	d := &disk{config: config, runs: newRuns(config.Local)}
	if d.files, err = filesOn(config.Local, log); err != nil {
		log.Debug("kv tier: no large files of llama-server on the local disk", "error", err)
	} else {
		files.UseDisk(d.files)
	}
	err = d.runs.begin(model)
	if err != nil && !errors.Is(err, errPlain) {
		log.Debug("kv tier: it is not remembered whether the daemon ends in order", "error", err)
		err = nil
	}
	return d, err
}

// filesFolder is the folder, below the local root, of the engines' files.
const filesFolder = "llama-server"

// filesOn makes a folder for an engine's files below the local root, and removes those of daemons
// that were killed.
func filesOn(local string, log *slog.Logger) (*slotfile.Folder, error) {
	parent := filepath.Join(local, filesFolder)
	if err := os.Mkdir(parent, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	folder, err := slotfile.NewFolder(parent)
	if err == nil {
		go folder.Sweep(log)
	}
	return folder, err
}

// engineLook is an engine that has loaded its model and has not answered anybody.
type engineLook struct {
	shape   *llamastate.Shape
	slots   int
	context int // tokens that a slot has room for
}

// settle looks at the engine once it has loaded its model, and lets prompts be answered. The
// store is opened by open meanwhile, and waited for at most some time: it may be on a disk that
// hangs, and a large model takes minutes to be identified. Until then prompts pass through.
// Where nothing can be stored, prompts pass through from the beginning.
func (s *server) settle(open func(*engineLook) error, most time.Duration) {
	err := s.engine.WaitReady(context.Background(), func() { s.heard.Store(true) })
	if err != nil || s.settled.Load() {
		return
	}
	defer s.settled.Store(true)
	seen, cause, err := s.look()
	if err != nil {
		s.offLoaded(cause, err)
		return
	}
	opened := run(func() error {
		err := open(seen)
		if err != nil {
			s.offLoaded(causeOf(err), err)
		}
		return err
	})
	if !opened.within(most) {
		s.log.Warn("kv tier: the store is not open yet; prompts are computed without it until then")
	}
}

// look finds out how the engine keeps its slots, or the cause for which they cannot be kept.
func (s *server) look() (*engineLook, telemetry.Obstacle, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	slots, err := s.engine.Slots(ctx)
	if err != nil {
		return nil, telemetry.ObstacleEngine, err
	}
	shape, err := llamatier.Shape(ctx, s.engine, s.files)
	switch {
	case err != nil && llamatier.CauseOf(err) == llamatier.CauseFormat:
		return nil, telemetry.ObstacleSlotFile, err
	case errors.Is(err, slotfile.ErrNoRoom):
		return nil, telemetry.ObstacleFull, err
	case err != nil:
		return nil, telemetry.ObstacleSlot, err
	case !shape.Has(llamastate.Full):
		return nil, telemetry.ObstacleModel, errors.New("it keeps no rows of single tokens")
	}
	return &engineLook{shape: shape, slots: len(slots), context: slots[0].Context}, "", nil
}

// open opens the store, and gives prompts slots from then on.
func (s *server) open(seen *engineLook) error {
	model, err := s.model.wait()
	if err != nil {
		return err
	}
	if !seen.shape.Has(llamastate.Window) {
		model.Window = 0 // llama-server attends to everything, as in phi3, whose file names a window
	} else if model.Window == 0 {
		return errors.New("its window is not known: the model's file names none")
	}
	d, err := s.disk.wait()
	if err != nil {
		return err
	}
	files := digests.Open(filepath.Join(d.config.Local, "digests.json"))
	projector, err := s.projector(files)
	if err != nil {
		return err
	}
	keys, err := s.identify(d.config, model, seen, files)
	if err != nil {
		return err
	}
	if err := files.Save(); err != nil {
		s.log.Debug("kv tier: digests of large files are not remembered", "error", err)
	}
	key := tierenv.Fingerprint(keys)
	total := int64(seen.slots) * seen.shape.RowBytes(seen.context, model.Window)
	config := d.config.ApplySplit(key.String(), total, "", nil, s.log)
	options := config.StoreOptions()
	options.Fingerprint, options.Identity, options.Logger, options.Trouble = key, keys, s.log, tierenv.Trouble(s.watch)
	options.Cold, options.Origin = config.ColdFor(notCold(seen.shape), s.log), tierenv.Origin(s.command.Model())
	if options.RemoteTier, err = remote.Open(context.Background(), config, s.log); err != nil {
		return err
	}
	store, err := diskstore.Open(context.Background(), options)
	if err != nil {
		return err
	}
	s.store.Store(store)
	s.rates.Store(d.config.OpenRates(key, s.command.Placement(), s.log))
	recents := why.NewRecents()
	tier := llamatier.New(llamatier.Options{
		Engine: s.engine, Shape: seen.shape, Slots: seen.slots, Context: seen.context, Window: model.Window,
		Control: model.Control, UserStart: s.userStart(seen.shape, model.Control),
		NoShift: !s.command.Shifts(), Search: !s.command.Shifts() && options.Cold == diskstore.ColdTypes{}, Similarity: s.command.Similarity(), Drafts: s.command.Drafts(),
		MediaKey: mediaKey(key.String(), projector), MediaFile: filepath.Join(d.config.Local, "media.json"),
		Files: s.files, PartBytes: s.partBytes, Store: store, Fingerprint: key, PageTokens: d.config.PageTokens,
		Lossy: options.Cold != diskstore.ColdTypes{}, Rates: s.rates.Load(), AlwaysRestore: d.config.Test, Idle: idle, Meter: s.meter, Recents: recents, Unstored: s.watch, Mistaken: s.proxy.Mistaken, Log: s.log,
	})
	used := make(chan struct{})
	s.proxy.Recall(model.Control, func(ctx context.Context) ([]int32, error) {
		conversation, err := store.Recent().Text(ctx)
		if <-used; err == nil {
			tier.Expect(conversation)
		}
		return conversation, err
	})
	size, predicted, suffixFirst := s.command.Infill()
	s.proxy.Infill = proxy.Infill{Tokens: model.Infill, Batch: size, Predict: predicted, Context: seen.context, SuffixFirst: suffixFirst}
	s.proxy.Use(tier)
	close(used)
	reported := telemetry.Model{
		Weights:     keys[tierenv.KeyWeights],
		Fingerprint: key.String(),
		Namespace:   keys[tierenv.KeyNamespace],
		CacheType:   keys[tierenv.KeyCacheType],
		PageTokens:  config.PageTokens,
		TokenBytes:  seen.shape.RowBytes(1, 0),
	}
	s.startReports(config, reported, func(r *telemetry.Report) {
		config.FillReport(r, store.Stats())
		r.Slots = append(r.Slots, tier.Slots()...)
		r.Busters = recents.Busters()
		r.Memory = append(r.Memory, telemetry.Memory{Name: "recent prompts", Bytes: recents.Bytes()})
		s.watch.Fill(r)
	})
	go s.reclaim(store, keys)
	attrs := append(config.Allocation(seen.shape.RowBytes(1, 0)), "slots", seen.slots, "fingerprint", key.String()[:12])
	if cold := tierenv.ColdText(options.Cold); cold != "" {
		attrs = append(attrs, "cold_type", cold)
	}
	s.log.Info("kv tier: on", attrs...)
	return nil
}

// userStart returns the tokens with which messages of users begin, if the tier needs them.
func (s *server) userStart(shape *llamastate.Shape, control func(token int32) bool) []int32 {
	if !shape.HasEnd() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	start, err := llamatier.UserStart(ctx, s.engine, control)
	if err != nil {
		s.log.Debug("kv tier: it is not known where messages of users begin", "error", err)
	}
	return start
}

// notCold is the reason for which a model cannot have lossy pages, "" if it can: only rows of f16 are
// made lossy, and a window or a state is used at one position only.
func notCold(shape *llamastate.Shape) string {
	switch {
	case shape.CacheType() != "f16":
		return fmt.Sprintf("the type of the KV cache is %s, and not f16", shape.CacheType())
	case shape.Has(llamastate.Recurrent):
		return "the model has recurrent layers"
	case shape.Has(llamastate.Window):
		return "the model has layers with a window"
	}
	return ""
}

// reclaim removes pages that another version of llama-server left. Closing the store ends it.
func (s *server) reclaim(store *diskstore.Store, keys map[string]string) {
	ctx := context.Background()
	usage, err := store.Survey(ctx)
	if err != nil {
		s.log.Debug("kv tier: pages are not counted", "error", err)
		return
	}
	tierenv.Reclaim(ctx, store, usage, keys, s.log)
}

// projector names the file that computes images, and how they are computed; "" without one.
func (s *server) projector(files *digests.Files) (string, error) {
	path, how := s.command.Projector()
	if path == "" {
		return "", nil
	}
	sums, err := files.All([]string{path})
	if err != nil {
		return "", fmt.Errorf("identify the projector: %w", err)
	}
	return sums[0] + " " + how, nil
}

// mediaKey names all that decides rows of images beside their content; "" without a projector.
func mediaKey(fingerprint, projector string) string {
	if projector == "" {
		return ""
	}
	return fingerprint + " " + projector
}

// identify finds the identity of the pages. Large files are read once, and remembered.
func (s *server) identify(config tierenv.Config, model identity.Model, seen *engineLook, files *digests.Files) (map[string]string, error) {
	numerics := s.command.Numerics()
	if unknown := s.command.Unknown(); len(unknown) > 0 {
		s.log.Info("kv tier: options are unknown, so pages are shared only with servers that have them, too", "options", strings.Join(unknown, " "))
	}
	if model.LongRope {
		numerics = append(numerics, fmt.Sprintf("n_ctx=%d", seen.context))
	}
	keys, err := identity.Of(s.command, numerics, config, seen.shape, s.run.Engine.Process.Pid, files)
	if err != nil {
		return nil, err
	}
	return keys, s.sameFiles()
}

// fileStates returns the states of the model and its adapters. A blob of Ollama never changes.
func (s *server) fileStates() (map[string]digests.State, error) {
	states := make(map[string]digests.State)
	projector, _ := s.command.Projector()
	for _, path := range append(s.command.Adapters(), s.command.Model(), projector) {
		if _, blob := digests.OfBlob(path); blob || path == "" {
			continue
		}
		state, err := digests.StateOf(path)
		if err != nil {
			return nil, err
		}
		states[path] = state
	}
	return states, nil
}

// sameFiles returns an error if a file was replaced since the engine was started, which may have
// read the one before.
func (s *server) sameFiles() error {
	before, err := s.before.wait()
	if err != nil {
		return err
	}
	now, err := s.fileStates()
	if err == nil && !maps.Equal(before, now) {
		err = errors.New("the model, its projector or an adapter was replaced while it was loaded; load it again")
	}
	return err
}
