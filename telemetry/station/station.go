// Package station runs the collector of a local root, and beside it the listener that
// OLLAMA_KV_METRICS_ADDR asks for: in a patched ollama serve, in the daemon before a llama-server,
// and in kvtier collect. Of several processes with one root, the collector has the listener.
package station

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/listen"
	"github.com/kvtier/kvtier/telemetry/page"
)

// Options of Serve.
type Options struct {
	Version string // of the program
	Logger  *slog.Logger
	// Names reads the names of models; it may take its time. Nil: models have the digests of
	// their weights.
	Names func() modelnames.Names
	// OnServe is called each time that this process begins to collect; nil for nobody.
	OnServe func()

	again <-chan time.Time // of tests
	deaf  bool             // nobody listens, because the address is none
}

// AddressError reports a value of OLLAMA_KV_METRICS_ADDR at which nobody can listen.
type AddressError struct{ error }

// Reader reads the state of a root.
func Reader(root string) listen.Read {
	return func(ctx context.Context) (telemetry.State, error) { return collect.Read(ctx, root) }
}

// Serve collects for a root until ctx ends; it waits while another process does. The error is
// that of collect.Serve, or an AddressError.
func Serve(ctx context.Context, root string, opt Options) error {
	names, forget := opt.refresh(ctx)
	defer forget()
	return opt.serve(ctx, root, names)
}

// keepAfter is the time between two tries of Keep.
const keepAfter = 10 * time.Second

// Keep does as Serve for a program that has other work: where Serve returns an error because a
// person has to do something, Keep logs it and tries again until ctx ends. With an address at which
// nobody can listen, Keep collects without a listener.
func Keep(ctx context.Context, root string, opt Options) {
	names, forget := opt.refresh(ctx)
	defer forget()
	again := opt.again
	if again == nil {
		ticker := time.NewTicker(keepAfter)
		defer ticker.Stop()
		again = ticker.C
	}
	log, said := opt.Logger, ""
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	for {
		err := opt.serve(ctx, root, names)
		switch {
		case ctx.Err() != nil:
			return
		case errors.As(err, new(AddressError)):
			log.Warn("kv tier: nobody listens for metrics", "reason", err)
			opt.deaf = true
			continue
		case err != nil && err.Error() != said:
			said = err.Error()
			log.Debug("kv tier: reports of runners are not collected", "reason", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		}
	}
}

// refresh begins to read names, until forget or the end of ctx.
func (opt Options) refresh(ctx context.Context) (names *modelnames.Cache, forget func()) {
	names = new(modelnames.Cache)
	if opt.Names == nil {
		return names, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		names.Refresh(ctx, opt.Names)
	}()
	return names, func() {
		cancel()
		<-done
	}
}

// serve is Serve with names.
func (opt Options) serve(ctx context.Context, root string, names *modelnames.Cache) error {
	ctx, stop := context.WithCancelCause(ctx)
	var others sync.WaitGroup
	defer others.Wait()
	defer stop(nil)
	addr := env.Value(listen.Variable)
	listener := sync.OnceFunc(func() { // a process that collects does so until it ends
		others.Add(1)
		go func() {
			defer others.Done()
			if err := listen.Serve(ctx, listen.Options{Addr: addr, Version: opt.Version, Read: Reader(root), Page: page.Handler, Log: opt.Logger}); err != nil {
				stop(AddressError{err})
			}
		}()
	})
	err := collect.Serve(ctx, root, collect.Options{Logger: opt.Logger, ModelName: names.Name, OnServe: func() {
		if opt.OnServe != nil {
			opt.OnServe()
		}
		if addr != "" && !opt.deaf {
			listener()
		}
	}})
	if cause := (AddressError{}); errors.As(context.Cause(ctx), &cause) {
		return cause
	}
	return err
}
