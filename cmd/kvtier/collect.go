package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/internal/version"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry/listen"
	"github.com/kvtier/kvtier/telemetry/station"
)

func newCollectCommand(out *output, at *storage, models *modelStore, sayWaits time.Duration) *cobra.Command {
	var metrics string
	cmd := &cobra.Command{
		Use:   "collect",
		Short: "Collect the reports of servers, until Ctrl-C",
		Long: `Collect the reports of servers, until Ctrl-C or SIGTERM.

A patched Ollama collects by itself. Before a stock Ollama, the process of one
loaded model collects for all, and nothing collects while no model is loaded:
kvtier ps then has the totals of before, and /metrics is not answered. Run this
beside it, with sudo or as the server's user, to have one that stays. One process
collects at a time; another one waits and takes over.

With --metrics, or OLLAMA_KV_METRICS_ADDR, it also answers GET /metrics for
Prometheus at that address, and shows a web page.`,
		Example: `  kvtier collect --metrics 127.0.0.1:9401
  sudo kvtier collect`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out.asJSON {
				return cli.Usagef("--json has no meaning here; leave it out")
			}
			if cmd.Flags().Changed("metrics") {
				if err := os.Setenv(listen.Variable, metrics); err != nil {
					return fmt.Errorf("set %s: %w", listen.Variable, err)
				}
			}
			if value := env.Value(listen.Variable); value != "" {
				if _, err := listen.Address(value); err != nil {
					return cli.Usage(err)
				}
			}
			if err := at.checkLocal(cmd.Context()); err != nil {
				return err
			}
			return serveCollector(cmd.Context(), at.config.Local, models, newLogger(out.stderr, slog.LevelInfo), sayWaits)
		},
	}
	cli.Flag(cmd.Flags(), &metrics, "metrics", "HOST:PORT", "address for Prometheus and the web page, such as 127.0.0.1:9401, instead of "+listen.Variable)
	return cmd
}

// defaultSayWaits is the time after which a collector that waits says so.
const defaultSayWaits = 2 * time.Second

// checkLocal refuses a directory that is another user's: its server could not read the
// collector's files. A directory that is missing is waited for.
func (at *storage) checkLocal(ctx context.Context) error {
	if _, err := os.Lstat(at.config.Local); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	at.config.Remote = "" // a collector has to do with the local directory alone
	return at.with(ctx, func(*roots) error { return nil })
}

// serveCollector collects until ctx ends, which is no error.
func serveCollector(ctx context.Context, root string, models *modelStore, log *slog.Logger, sayWaits time.Duration) error {
	waits := time.AfterFunc(sayWaits, func() {
		log.Info("kvtier: waiting to collect: another process collects, or the directory is missing", "root", root)
	})
	defer waits.Stop()
	err := station.Serve(ctx, root, station.Options{
		Version: version.String(), Logger: log, Names: func() modelnames.Names { return modelnames.Read(models.dir()) },
		Hints: func() []string { return install.Here().Updates() },
		OnServe: func() {
			waits.Stop()
			log.Info("kvtier: collecting", "root", root)
		},
	})
	switch {
	case errors.As(err, new(station.AddressError)):
		return cli.Usage(err)
	case errors.Is(err, context.Canceled):
		return nil
	}
	return err
}
