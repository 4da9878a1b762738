// Package station runs the collector of a local root, and beside it the listener that
// OLLAMA_KV_METRICS_ADDR asks for: in a patched ollama serve, in the daemon before a llama-server,
// and in kvtier collect. Of several processes with one root, the collector has the listener.
package station

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
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
	// Hints reads sentences about the installation for the web page, once a minute while somebody looks at
	// it; it may take its time. Nil: there are none.
	Hints func() []string
	// OnServe is called each time that this process begins to collect; nil for nobody.
	OnServe func()

	stay bool // where a person has to do something, it is tried again
}

// AddressError reports a value of OLLAMA_KV_METRICS_ADDR at which nobody can listen.
type AddressError struct{ error }

// Reader reads the state of a root.
func Reader(root string) listen.Read {
	return func(ctx context.Context) (telemetry.State, error) { return collect.Read(ctx, root) }
}

// hints are the latest sentences that look has found. A look that hangs is the only one.
type hints struct {
	look func() []string

	mu      sync.Mutex
	said    []string
	at      time.Time
	looking bool
}

// hintsEvery is the time after which hints are looked for again.
const hintsEvery = time.Minute

// latest does not wait: the page asks again after two seconds.
func (h *hints) latest() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.look != nil && !h.looking && time.Since(h.at) >= hintsEvery {
		h.looking = true
		go func() {
			said := h.look()
			h.mu.Lock()
			defer h.mu.Unlock()
			h.said, h.at, h.looking = said, time.Now(), false
		}()
	}
	return h.said
}

// addTo adds the latest hints to the states that read returns.
func (h *hints) addTo(read listen.Read) listen.Read {
	return func(ctx context.Context) (telemetry.State, error) {
		state, err := read(ctx)
		state.Hints = h.latest()
		return state, err
	}
}

// Keep does as Serve for a program that has other work: where Serve returns an error because a person has
// to do something, Keep logs it and goes on until ctx ends. With an address at which nobody can listen,
// Keep collects without a listener.
func Keep(ctx context.Context, root string, opt Options) {
	opt.stay = true
	_ = Serve(ctx, root, opt) // it has been logged
}

// Serve collects for a root until ctx ends; it waits while another process does. The error is
// that of collect.Serve, or an AddressError.
func Serve(ctx context.Context, root string, opt Options) error {
	ctx, stop := context.WithCancelCause(ctx)
	var others sync.WaitGroup
	defer others.Wait()
	defer stop(nil)
	beside := func(run func()) {
		others.Add(1)
		go func() {
			defer others.Done()
			run()
		}()
	}
	names := new(modelnames.Cache)
	if opt.Names != nil {
		beside(func() { names.Refresh(ctx, opt.Names) })
	}
	onPage := &hints{look: opt.Hints}
	log := cmp.Or(opt.Logger, slog.New(slog.DiscardHandler))
	listener := sync.OnceFunc(func() { // a process that collects does so until it ends
		beside(func() {
			err := listen.Serve(ctx, listen.Options{Addr: env.Value(listen.Variable), Version: opt.Version, Read: Reader(root), Log: opt.Logger, Page: func(read listen.Read) http.Handler {
				return page.Handler(onPage.addTo(read))
			}})
			switch {
			case err == nil:
			case opt.stay:
				log.Warn("kv tier: nobody listens for metrics", "reason", err)
			default:
				stop(AddressError{err})
			}
		})
	})
	err := collect.Serve(ctx, root, collect.Options{Logger: opt.Logger, ModelName: names.Name, Stay: opt.stay, OnServe: func() {
		if opt.OnServe != nil {
			opt.OnServe()
		}
		if env.Value(listen.Variable) != "" {
			listener()
		}
	}})
	if cause := (AddressError{}); errors.As(context.Cause(ctx), &cause) {
		return cause
	}
	return err
}
