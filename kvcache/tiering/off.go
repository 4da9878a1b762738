package tiering

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

// refusal is the reason for which a model is not tiered.
type refusal struct {
	cause telemetry.Obstacle
	error
}

func (r refusal) Unwrap() error { return r.error }

// unsupported is the cause for a model of an architecture that is not tiered.
func (m *Model) unsupported() telemetry.Obstacle {
	if m.Config != nil && m.Config.Uint("pooling_type") > 0 {
		return telemetry.ObstacleEmbedding
	}
	return telemetry.ObstacleModel
}

// whyNot is the cause of a model that is not tiered. An error of the directory says more than that
// a setting cannot be used.
func whyNot(err error) telemetry.Obstacle {
	cause := tierenv.ObstacleOf(err)
	if r := (refusal{}); cause == telemetry.ObstacleOther && errors.As(err, &r) {
		cause = r.cause
	}
	return cause
}

// notTiered tells, in the log and for as long as the model is loaded, why the model is not tiered.
// stop ends the reports.
func notTiered(m Model, reason error, log *slog.Logger) (stop func()) {
	meter := new(telemetry.Meter)
	watch := unstored.New(log, meter)
	watch.Off(slog.LevelWarn, whyNot(reason), reason, "model", filepath.Base(m.Path))
	config, err := tierenv.FromEnvironment(slog.New(slog.DiscardHandler)) // it has logged before
	if err != nil || config.PrepareRoot() != nil {
		return func() {} // nobody can collect there
	}
	weights, _ := digests.OfBlob(m.Path)
	source := &telemetry.Source{
		Process: collect.Self(telemetry.EngineOllama),
		Started: time.Now(),
		Model: telemetry.Model{
			Weights: weights, Name: filepath.Base(m.Path), Architecture: m.Architecture, Namespace: config.Namespace,
			CacheType: m.CacheType, PageTokens: config.PageTokens,
		},
		Meter: meter, Fill: watch.Fill,
	}
	if weights != "" {
		source.Model.Name = "" // a blob's name says nothing
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		collect.Push(ctx, config.Local, source, collect.Options{Logger: log, Names: modelnames.Own})
	}()
	return func() {
		cancel()
		<-done // in bounded time: see collect.Push
	}
}
