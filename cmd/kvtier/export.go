package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/cli"
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

func (a *app) newArchive(file string, m inspect.ArchiveManifest, size int64) archive {
	return archive{
		File: file, Model: a.names().of(m.Identity), Fingerprint: m.Fingerprint, Identity: m.Identity,
		Pages: len(m.Pages), Tokens: m.Tokens, Bytes: size,
	}
}

// exportFlags are the flags of export.
type exportFlags struct {
	key, model, output string
	last, force        bool
}

func newExportCommand(a *app) *cobra.Command {
	var f exportFlags
	cmd := &cobra.Command{
		Use:   "export {--key PAGE | --last} -o FILE",
		Short: "Write a conversation's pages to one file",
		Long: `Write the pages of a conversation, from its first to the given one, to one file
that kvtier import reads. It is an uncompressed tar of manifest.json and the pages.

The file holds the conversation, so only its owner can read it, as with pages.`,
		Args: cli.NoArgs,
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
			return a.export(cmd.Context(), f)
		},
	}
	cmd.Flags().StringVar(&f.key, "key", "", "first digits of the key of the conversation's last page or tail")
	cmd.Flags().BoolVar(&f.last, "last", false, "the conversation that was used last")
	cmd.Flags().StringVar(&f.model, "model", "", "with --last: "+modelUsage)
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "file to write")
	cli.Give(cmd.Flags(), "key", "the first digits of a key")
	cli.Give(cmd.Flags(), "model", giveModel)
	cli.Give(cmd.Flags(), "output", "the name of a file")
	cmd.Flags().BoolVar(&f.force, "force", false, "replace a file that exists")
	return cmd
}

func (a *app) export(ctx context.Context, f exportFlags) error {
	if err := f.checkOutput(); err != nil {
		return err
	}
	return a.with(ctx, func(root *roots) error {
		page, err := a.exported(ctx, root, f)
		if err != nil {
			return err
		}
		chain, err := root.Chain(ctx, page.Name)
		if errors.Is(err, tier.ErrNotFound) {
			return fmt.Errorf("find the pages before %s; its conversation is not whole: %w", short(page.Key.String()), err)
		}
		if err != nil {
			return err
		}
		var size int64
		for _, p := range chain {
			size += p.Bytes
		}
		m, err := a.writeArchive(ctx, root, chain, size, f.output)
		if err != nil {
			return err
		}
		out := a.newArchive(f.output, *m, size)
		if a.asJSON {
			return a.json(out)
		}
		fmt.Fprintf(a.stdout, "wrote %s: %s of %s, %s, %s\n",
			f.output, plural(out.Tokens, "token"), oneLine(out.Model), plural(out.Pages, "page"), humanBytes(size))
		return nil
	})
}

// checkOutput refuses an output file that cannot be written, before pages are read.
func (f exportFlags) checkOutput() error {
	if info, err := os.Stat(filepath.Dir(f.output)); err != nil || !info.IsDir() {
		return fmt.Errorf("there is no directory %s to write to; make it, or name a file elsewhere", filepath.Dir(f.output))
	}
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

// exported returns the page that the flags select.
func (a *app) exported(ctx context.Context, root *roots, f exportFlags) (inspect.PageFile, error) {
	if !f.last {
		return a.onePage(ctx, root, f.key)
	}
	var pick func(pagefile.Key) bool
	if f.model != "" {
		p, err := a.pick(ctx, root, f.model)
		if err != nil {
			return inspect.PageFile{}, err
		}
		pick = p.has
	}
	page, err := root.Recent(ctx, pick)
	if errors.Is(err, tier.ErrNotFound) {
		return page, fmt.Errorf("no pages are stored in %s; if the server keeps them elsewhere, give that directory as --root", a.places())
	}
	return page, err
}

// writeArchive writes a temporary file and renames it, so that a file of the given name is
// always a whole archive.
func (a *app) writeArchive(ctx context.Context, root *roots, chain []inspect.PageFile, size int64, path string) (m *inspect.ArchiveManifest, err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, fmt.Errorf("make a file beside %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			tmp.Close()
			os.Remove(tmp.Name())
		}
	}()
	bars := a.newBars()
	defer bars.Close()
	bar := bars.Bytes("exporting")
	var done int64
	w := bufio.NewWriterSize(tmp, 1<<20)
	m, err = root.Export(ctx, chain, w, func(n int64) {
		done += n
		bar.Progress(done, size)
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(w.Flush(), tmp.Sync(), tmp.Close()); err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return nil, fmt.Errorf("name the archive: %w", err)
	}
	return m, nil
}
