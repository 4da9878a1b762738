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
	"github.com/kvtier/kvtier/internal/version"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/listen"
)

func newCollectCommand(out *output, at *storage) *cobra.Command {
	var metrics string
	cmd := &cobra.Command{
		Use:   "collect",
		Short: "Collect the reports of servers, until Ctrl-C",
		Long: `Collect the reports of servers, until Ctrl-C or SIGTERM.

With --metrics, or OLLAMA_KV_METRICS_ADDR, collect answers GET /metrics for
Prometheus at that address, and shows a web page.

A patched Ollama does so by itself. Before a stock Ollama, the process of one
loaded model does, and nobody while no model is loaded. Run this beside it, with
sudo or as the server's user, to have one that stays. Of several processes with
one address, one has it; another one waits and takes over.`,
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
			collectReports(cmd.Context(), at.config.Local, newLogger(out.stderr, slog.LevelInfo))
			return nil
		},
	}
	cli.Flag(cmd.Flags(), &metrics, "metrics", "HOST:PORT", "address for Prometheus and the web page, such as 127.0.0.1:9401, instead of "+listen.Variable)
	return cmd
}

// checkLocal refuses a directory that is another user's: its server could not read the
// totals. A directory that is missing is waited for.
func (at *storage) checkLocal(ctx context.Context) error {
	if _, err := os.Lstat(at.config.Local); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	at.config.Remote = "" // reports are in the local directory alone
	return at.with(ctx, func(*roots) error { return nil })
}

// collectEvery is the time between two looks for servers that have ended.
const collectEvery = time.Second

// collectReports listens for metrics, and adds up the reports of servers that have ended, until ctx ends.
func collectReports(ctx context.Context, root string, log *slog.Logger) {
	listens := make(chan struct{})
	go func() {
		defer close(listens)
		hints := func() []string { return install.Here().Updates() }
		listen.Serve(ctx, root, listen.Options{Version: version.String(), Log: log, Hints: hints})
	}()
	defer func() { <-listens }()
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for said := ""; ctx.Err() == nil; {
		_, err := collect.Read(ctx, root) // who reads adds them up
		say, level := "kvtier: collecting", slog.LevelInfo
		switch {
		case errors.Is(err, fs.ErrNotExist):
			say = "kvtier: waiting to collect: no server has reported yet, or the directory is missing"
		case err != nil:
			say, level = "kvtier: cannot read the reports, and tries again: "+err.Error(), slog.LevelWarn
		}
		if say != said && (err == nil || ctx.Err() == nil) {
			log.Log(ctx, level, say, "root", root)
			said = say
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}
