package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/version"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/expose"
)

// metricsMode lets the node exporter read a new file, which runs as a user of its own. The
// metrics have no text of prompts. A file that is there keeps its mode.
const metricsMode = 0o644

// statFlags choose metrics instead of a table.
type statFlags struct {
	prometheus bool
	output     string
}

func (f *statFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.prometheus, "prometheus", false, "print metrics for Prometheus, with those that servers have reported")
	flags.StringVarP(&f.output, "output", "o", "", "with --prometheus: file to replace, such as one of the node exporter's textfile collector")
	cli.Give(flags, "output", "the name of a file")
}

func (f statFlags) check(asJSON bool) error {
	switch {
	case f.output != "" && !f.prometheus:
		return cli.Usagef("--output is for --prometheus; redirect the table")
	case f.prometheus && asJSON:
		return cli.Usagef("--prometheus and --json cannot be had at once")
	}
	return nil
}

// statMetrics writes the totals that servers have reported, and over them the figures that were
// counted on disk just now. Each of both is written without the other when that one fails, which
// is the error.
func (a *app) statMetrics(ctx context.Context, usage diskstore.RootUsage, output string) error {
	state, stateErr := collect.Read(ctx, a.config.Local)
	if errors.Is(stateErr, fs.ErrNotExist) {
		stateErr = nil // no server has run since it reports
	}
	opt := expose.Options{Version: version.String(), Disks: []expose.Disk{a.disk(tier.Local, usage.Local)}}
	if a.config.Remote != "" && usage.RemoteErr == nil {
		opt.Disks = append(opt.Disks, a.disk(tier.Remote, usage.Remote))
	}
	var text bytes.Buffer
	err := opt.Write(&text, state)
	if err == nil && output != "" {
		err = replaceFile(output, text.Bytes())
	} else if err == nil {
		_, err = a.stdout.Write(text.Bytes())
	}
	return errors.Join(err, stateErr, usage.RemoteErr)
}

// disk is a tier as metrics.
func (a *app) disk(name string, u diskstore.RootTierUsage) expose.Disk {
	s := a.tierStat(name, u)
	d := expose.Disk{
		Tier: name, Root: u.Root, Pages: s.Pages, Tails: s.Tails, PageBytes: s.PageBytes, Budget: s.Budget,
		QuarantinedFiles: s.Quarantined, QuarantinedBytes: s.QuarBytes, TemporaryFiles: s.Temp, TemporaryBytes: s.TempBytes,
		Bytes: s.DiskBytes, FreeBytes: s.DiskFree,
	}
	if s.Booked != nil {
		d.Booked = *s.Booked
	}
	today := time.Now().UTC().Format(time.DateOnly)
	for _, w := range s.Written {
		if w.Day == today {
			d.WrittenToday = w.Bytes
		}
	}
	return d
}

// replaceFile replaces a file in one step, so that no reader sees a part. The file beside it
// that is written first has a name that the textfile collector passes over.
func replaceFile(path string, text []byte) (err error) {
	beside, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write metrics beside %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			os.Remove(beside.Name())
			err = fmt.Errorf("write metrics to %s: %w", path, err)
		}
	}()
	_, err = beside.Write(text)
	if err == nil {
		err = beside.Chmod(modeOf(path))
	}
	if closeErr := beside.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(beside.Name(), path)
	}
	return err
}

// modeOf is the mode of a file that is replaced, or that of a new one.
func modeOf(path string) fs.FileMode {
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
		return info.Mode().Perm()
	}
	return metricsMode
}
