package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
)

// state reads the state of the local directory's collector, or its last one.
func (a *app) state(ctx context.Context) (telemetry.State, error) {
	return a.readState(ctx, func(ctx context.Context) (telemetry.State, error) {
		return collect.Read(ctx, a.config.Local)
	})
}

// readState bounds the time of read. Without a collector, a state has no processes.
func (a *app) readState(ctx context.Context, read func(context.Context) (telemetry.State, error)) (telemetry.State, error) {
	if a.timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, a.timeout)
		defer stop()
	}
	s, err := read(ctx)
	if !s.Live {
		s.Processes = nil
	}
	switch {
	case err == nil:
		return s, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, tier.ErrRootMissing):
		return s, fmt.Errorf("no server has reported to %s yet; set OLLAMA_KV_TIERING=1 for the server, and ask a model something; if the server keeps its pages elsewhere, give that directory as --root; kvtier doctor names the cause", a.config.Local)
	case a.service.Service != "":
		return s, a.ofService(err)
	case errors.Is(err, fs.ErrPermission):
		return s, fmt.Errorf("%w; run kvtier as the server's user, as sudo -u does", err)
	}
	return s, err
}

// nameOf names weights as Ollama does, or else as their process did.
func (n modelNames) nameOf(weights, own string) string {
	if len(n.Names[weights]) == 0 && own != "" {
		return own
	}
	return n.of(map[string]string{tierenv.KeyWeights: weights})
}

// keepModel returns a filter for the weights of one model, which the user gives by its name or by
// the first digits of its weights. Without a model, all are kept.
func (a *app) keepModel(s telemetry.State, names modelNames, wanted string) (func(weights string) bool, error) {
	if wanted == "" {
		return func(string) bool { return true }, nil
	}
	named := func(m telemetry.ModelState) bool {
		return names.Has(m.Model.Weights, wanted) || m.Model.Name == wanted
	}
	byDigits := func(m telemetry.ModelState) bool {
		return isDigits(wanted) && strings.HasPrefix(m.Model.Weights, wanted)
	}
	meant := make(map[string]bool)
	for _, is := range []func(telemetry.ModelState) bool{named, byDigits} {
		for _, m := range s.Models {
			if is(m) {
				meant[m.Model.Weights] = true
			}
		}
		if len(meant) > 0 {
			return func(weights string) bool { return meant[weights] }, nil
		}
	}
	return nil, fmt.Errorf("no model %q has reported; kvtier ps lists those that have", wanted)
}
