package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/version"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/listen"
	"github.com/kvtier/kvtier/telemetry/page"
)

func newCollectCommand(a *app) *cobra.Command {
	var metrics string
	cmd := &cobra.Command{
		Use:   "collect",
		Short: "Collect what servers report, until Ctrl-C",
		Long: `Collect what servers report, until Ctrl-C or SIGTERM.

A patched Ollama collects by itself. Before a stock Ollama, each model that is
loaded collects for all, and nothing collects while none is loaded: kvtier ps and
/metrics then have the totals of before, and no text for kvtier why. Run this
beside it, as the server's user, to have one collector that stays. One process
collects at a time; another one waits and takes over.

With --metrics, or OLLAMA_KV_METRICS_ADDR, it also answers GET /metrics for
Prometheus at that address, and shows a web page.`,
		Example: `  kvtier collect --metrics 127.0.0.1:9401
  sudo -u ollama kvtier collect`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.asJSON {
				return cli.Usagef("--json has no meaning here; leave it out")
			}
			if cmd.Flags().Changed("metrics") {
				if err := os.Setenv(listen.Variable, metrics); err != nil {
					return fmt.Errorf("set %s: %w", listen.Variable, err)
				}
			}
			return a.serveCollector(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&metrics, "metrics", "", "address for Prometheus and the web page, such as 127.0.0.1:9401, instead of "+listen.Variable)
	cli.Give(cmd.Flags(), "metrics", "HOST:PORT")
	return cmd
}

// defaultSayWaits is the time after which a collector that waits says so.
const defaultSayWaits = 2 * time.Second

// checkLocal refuses a directory that is another user's: its server could not reach the
// collector's socket. A directory that is missing is waited for.
func (a *app) checkLocal(ctx context.Context) error {
	if _, err := os.Lstat(a.config.Local); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	a.config.Remote = "" // a collector has to do with the local directory alone
	return a.with(ctx, func(*roots) error { return nil })
}

// serveCollector collects until ctx ends, which is no error.
func (a *app) serveCollector(ctx context.Context) error {
	if err := a.checkLocal(ctx); err != nil {
		return err
	}
	log := a.loggerFrom(slog.LevelInfo)
	waits := time.AfterFunc(cmp.Or(a.sayWaits, defaultSayWaits), func() {
		log.Info("kvtier: waiting to collect: another process collects, or the directory is missing", "root", a.config.Local)
	})
	defer waits.Stop()
	names := new(nameCache)
	ctx, stop := context.WithCancel(ctx)
	var others sync.WaitGroup
	defer others.Wait()
	defer stop()
	others.Add(1)
	go func() {
		defer others.Done()
		names.refresh(ctx, a)
	}()
	var once sync.Once
	listening := make(chan error, 1)
	opt := collect.Options{Logger: log, ModelName: names.name, OnServe: func() {
		waits.Stop()
		log.Info("kvtier: collecting", "root", a.config.Local)
		once.Do(func() {
			others.Add(1)
			go func() {
				defer others.Done()
				if err := a.listen(ctx, log); err != nil {
					listening <- err
					stop()
				}
			}()
		})
	}}
	err := collect.Serve(ctx, a.config.Local, opt)
	select {
	case err = <-listening:
	default:
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// listen answers at the address for metrics, if there is one, until ctx ends.
func (a *app) listen(ctx context.Context, log *slog.Logger) error {
	addr := env.Value(listen.Variable)
	if addr == "" {
		return nil
	}
	read := func(ctx context.Context) (telemetry.State, error) { return collect.Read(ctx, a.config.Local) }
	return cli.Usage(listen.Serve(ctx, listen.Options{Addr: addr, Version: version.String(), Read: read, Page: page.Handler, Log: log}))
}

// nameCache has the names of models for a collector, which may not wait for a disk.
type nameCache struct{ names atomic.Pointer[modelNames] }

// namesEvery is the time after which names are read again: models come and go.
const namesEvery = time.Minute

func (c *nameCache) refresh(ctx context.Context, a *app) {
	tick := time.NewTicker(namesEvery)
	defer tick.Stop()
	for {
		names := a.names()
		c.names.Store(&names)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// name is the name of weights, or "".
func (c *nameCache) name(weights string) string {
	names := c.names.Load()
	if names == nil || len((*names)[weights]) == 0 {
		return ""
	}
	return (*names)[weights][0]
}
