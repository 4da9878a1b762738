package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/remote"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// archive is the output of export --json and import --json.
type archive struct {
	File        string            `json:"file"`
	Model       string            `json:"model"`
	Fingerprint string            `json:"fingerprint"`
	Identity    map[string]string `json:"identity"`
	Pages       int               `json:"pages"`
	Tokens      int               `json:"tokens"`
	Bytes       int64             `json:"bytes"` // bytes of the pages
}

func showArchive(out *output, names modelNames, file, done string, m *inspect.ArchiveManifest) error {
	a := archive{file, names.of(m.Identity), m.Fingerprint, m.Identity, len(m.Pages), m.Tokens, m.Bytes}
	return out.show(a, func(w io.Writer) {
		fmt.Fprintf(w, "%s %s of %s, %s, %s\n", done, plural(a.Tokens, "token"), oneLine(a.Model), plural(a.Pages, "page"), humanBytes(a.Bytes))
	})
}

type exportFlags struct {
	key, model, output string
	last, force        bool
}

func newExportCommand(out *output, at *storage, models *modelStore) *cobra.Command {
	var f exportFlags
	cmd := &cobra.Command{
		Use:   "export {--key PAGE | --last} -o FILE",
		Short: "Write a conversation's pages to one file",
		Long: `Write the pages of a conversation, from its first to the given one, to one file
that kvtier import reads. It is an uncompressed tar of manifest.json and the pages.

The file holds the conversation, so only its owner can read it, as with pages.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.key == "" && !f.last:
				return cli.Usagef("say which conversation: --key with the digits of its last page, or --last")
			case f.key != "" && f.last:
				return cli.Usagef("--key and --last name two conversations; give one of them")
			case f.model != "" && !f.last:
				return cli.Usagef("--model goes with --last; a key is one model's anyway")
			case f.output == "":
				return cli.Usagef("say where to: -o with the name of a file")
			}
			return f.run(cmd.Context(), out, at, models)
		},
	}
	cli.Flag(cmd.Flags(), &f.key, "key", "the first digits of a key", "first digits of the key of the conversation's last page or tail")
	cmd.Flags().BoolVar(&f.last, "last", false, "the conversation that was used last")
	cli.Flag(cmd.Flags(), &f.model, "model", giveModel, "with --last: "+modelUsage)
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "file to write")
	cli.Give(cmd.Flags(), "output", giveOutput)
	cmd.Flags().BoolVar(&f.force, "force", false, "replace a file that exists")
	return cmd
}

// run writes the archive, and puts the file in place once it is a whole one.
func (f exportFlags) run(ctx context.Context, out *output, at *storage, models *modelStore) error {
	if err := at.by.do(f.checkOutput); err != nil {
		return err
	}
	return at.with(ctx, func(root *roots) error {
		page, err := f.page(ctx, root, at.places(), models)
		if err != nil {
			return err
		}
		var m *inspect.ArchiveManifest
		bars := out.bars()
		err = writeBeside("pages", f.output, at.by, func(file *os.File) error {
			if m, err = root.Export(ctx, page.Name, file, bars.Bytes("exporting").Progress); err != nil {
				return err
			}
			return file.Sync()
		})
		bars.Close()
		if err != nil {
			return err
		}
		return showArchive(out, models.names(), f.output, "wrote "+f.output+":", m)
	})
}

// checkOutput refuses an output file that cannot be written, before pages are read.
func (f exportFlags) checkOutput() error {
	info, err := os.Lstat(f.output)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at the file to write: %w", err)
	case info.IsDir():
		return fmt.Errorf("%s is a directory; name a file in it", f.output)
	case !f.force:
		return fmt.Errorf("%s exists; name another file, or give --force", f.output)
	}
	return nil
}

func (f exportFlags) page(ctx context.Context, root *roots, places string, models *modelStore) (inspect.PageFile, error) {
	if !f.last {
		return onePage(ctx, root, places, f.key)
	}
	var has func(pagefile.Key) bool
	if f.model != "" {
		p, err := pick(ctx, root, models.names(), f.model)
		if err != nil {
			return inspect.PageFile{}, err
		}
		has = p.has
	}
	page, err := root.Recent(ctx, has)
	if errors.Is(err, tier.ErrNotFound) {
		return page, fmt.Errorf("no pages are stored in %s; if the server keeps them elsewhere, give that directory as --root", places)
	}
	return page, err
}

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
		Args: cli.Args(1, 1, "name one file, which kvtier export wrote"),
		RunE: func(cmd *cobra.Command, args []string) error { return load(cmd.Context(), args[0], out, at, models) },
	}
}

func load(ctx context.Context, path string, out *output, at *storage, models *modelStore) (err error) {
	var file vfs.File
	err = at.by.do(func() (err error) {
		file, err = vfs.OS.Open(path)
		return err
	})
	if err != nil {
		return fmt.Errorf("import: %w; name a file that kvtier export wrote", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("import: %w", err)
	}
	local, below := at.tiers()
	open := func(m tier.Manifest) (inspect.PageStore, error) {
		fingerprint := tierenv.Fingerprint(m.Identity)
		if fingerprint.String() != m.Fingerprint { // its pages would be listed and removed as another model's
			return nil, fmt.Errorf("its manifest has fingerprint %q, which is not that of its identity: %w", short(m.Fingerprint), inspect.ErrArchive)
		}
		engine, err := remote.Open(ctx, at.config, at.log)
		if err != nil {
			return nil, err
		}
		return diskstore.Open(ctx, diskstore.Options{
			Fingerprint: fingerprint, Identity: m.Identity, PageTokens: m.PageTokens, Local: local, Remote: below, RemoteTier: engine,
			WritePerDay: at.config.WriteBytesPerDay, Compress: at.config.Compress, Timeout: at.timeout, Logger: at.log,
		})
	}
	bars := out.bars()
	m, err := inspect.Import(ctx, io.NewSectionReader(file, 0, info.Size()), open, bars.Bytes("importing").Progress)
	bars.Close()
	if errors.Is(err, inspect.ErrArchive) {
		err = fmt.Errorf("%w; give a file that kvtier export wrote, as a whole", err)
	}
	if err != nil {
		return fmt.Errorf("import %s: %w", path, err)
	}
	return showArchive(out, models.names(), path, "stored", m)
}
