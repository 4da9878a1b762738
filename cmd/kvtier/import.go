package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/tierenv"
)

func newImportCommand(a *app) *cobra.Command {
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
		RunE: func(cmd *cobra.Command, args []string) error { return a.load(cmd.Context(), args[0]) },
	}
}

func (a *app) load(ctx context.Context, path string) (err error) {
	file, err := vfs.OS.Open(path)
	if err != nil {
		return fmt.Errorf("import: %w; name a file that kvtier export wrote", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("import: %w", err)
	}
	bars := a.newBars()
	done, err := inspect.Import(ctx, inspect.ImportOptions{
		Open: a.openFor, Accept: acceptIdentity, Progress: bars.Bytes("importing").Progress,
	}, file, info.Size())
	bars.Close()
	if errors.Is(err, inspect.ErrArchive) {
		return fmt.Errorf("import %s: %w; give a file that kvtier export wrote, as a whole", path, err)
	}
	if err != nil {
		return fmt.Errorf("import %s: %w", path, err)
	}
	out := a.newArchive(path, done.Manifest, done.Bytes)
	if a.asJSON {
		return a.json(out)
	}
	fmt.Fprintf(a.stdout, "stored %s of %s, %s, %s\n",
		plural(out.Tokens, "token"), oneLine(out.Model), plural(out.Pages, "page"), humanBytes(out.Bytes))
	return nil
}

// openFor opens the store for an archive's pages.
func (a *app) openFor(ctx context.Context, fingerprint pagefile.Key, m tier.Manifest) (inspect.PageStore, error) {
	local, remote := a.tiers()
	return diskstore.Open(ctx, diskstore.Options{
		Fingerprint: fingerprint, Identity: m.Identity, PageTokens: m.PageTokens, Local: local, Remote: remote,
		WritePerDay: a.config.WriteBytesPerDay, Compress: a.config.Compress, Timeout: a.timeout, Logger: a.logger(),
	})
}

// acceptIdentity refuses a manifest whose identity does not give its fingerprint: its pages
// would be listed and removed as another model's.
func acceptIdentity(m tier.Manifest) error {
	if got := tierenv.Fingerprint(m.Identity).String(); got != m.Fingerprint {
		return fmt.Errorf("its manifest has fingerprint %q, which is not that of its identity: %w", short(m.Fingerprint), inspect.ErrArchive)
	}
	return nil
}
