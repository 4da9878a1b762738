package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/tierenv"
)

func newImportCommand(out *output, at *storage, models *modelStore) *cobra.Command {
	return &cobra.Command{
		Use:   "import FILE",
		Short: "Store the pages of a file that kvtier export wrote",
		Long: `Store the pages of a file, which kvtier export wrote, in the local tier. The whole
file is checked before the first page is stored. Pages that are stored already stay
as they are.

A server uses pages only if its model, engine, cache type and so on are those that
made the pages; kvtier ls --json shows them. The checks find accidents, not
forgeries: import files only from people you trust.`,
		Args: cli.OneArg("name one file, which kvtier export wrote"),
		RunE: func(cmd *cobra.Command, args []string) error { return load(cmd.Context(), args[0], out, at, models) },
	}
}

func load(ctx context.Context, path string, out *output, at *storage, models *modelStore) (err error) {
	file, err := vfs.OS.Open(path)
	if err != nil {
		return fmt.Errorf("import: %w; name a file that kvtier export wrote", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("import: %w", err)
	}
	local, remote := at.tiers()
	bars := out.bars()
	done, err := inspect.Import(ctx, inspect.ImportOptions{
		Open: func(ctx context.Context, fingerprint pagefile.Key, m tier.Manifest) (inspect.PageStore, error) {
			return diskstore.Open(ctx, diskstore.Options{
				Fingerprint: fingerprint, Identity: m.Identity, PageTokens: m.PageTokens, Local: local, Remote: remote,
				WritePerDay: at.config.WriteBytesPerDay, Compress: at.config.Compress, Timeout: at.timeout, Logger: at.log,
			})
		},
		Accept: acceptIdentity, Progress: bars.Bytes("importing").Progress,
	}, file, info.Size())
	bars.Close()
	if errors.Is(err, inspect.ErrArchive) {
		err = fmt.Errorf("%w; give a file that kvtier export wrote, as a whole", err)
	}
	if err != nil {
		return fmt.Errorf("import %s: %w", path, err)
	}
	stored := newArchive(models.names(), path, done.Manifest, done.Bytes)
	return out.show(stored, func(w io.Writer) { stored.print(w, "stored") })
}

// acceptIdentity refuses a manifest whose identity does not give its fingerprint: its pages
// would be listed and removed as another model's.
func acceptIdentity(m tier.Manifest) error {
	if got := tierenv.Fingerprint(m.Identity).String(); got != m.Fingerprint {
		return fmt.Errorf("its manifest has fingerprint %q, which is not that of its identity: %w", short(m.Fingerprint), inspect.ErrArchive)
	}
	return nil
}
