package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/modelfile"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry/show"
)

// inspected is a page in the output of inspect --json.
type inspected struct {
	Key         string            `json:"key"`
	Path        string            `json:"path"`
	Tier        string            `json:"tier,omitempty"` // empty for a page named by its file
	Model       string            `json:"model"`
	Fingerprint string            `json:"fingerprint"`
	Identity    map[string]string `json:"identity"`
	Parent      string            `json:"parent"` // the fingerprint, for the first page
	Start       int               `json:"start"`
	Tokens      []int32           `json:"tokens"`
	Text        *string           `json:"text"` // null without a model
	PageTokens  int               `json:"page_tokens"`
	Tail        bool              `json:"tail"`
	Media       []media           `json:"media"`
	FileBytes   int64             `json:"file_bytes"`
	LastUsed    *time.Time        `json:"last_used"`
	Sections    []section         `json:"sections"`
}

type media struct {
	Offset int    `json:"offset"`
	Hash   string `json:"hash"`
}

type section struct {
	Group    int    `json:"group"`
	Layer    int    `json:"layer"`
	Kind     string `json:"kind"`
	RowBytes int    `json:"row_bytes"`
	Offset   int64  `json:"offset"`
	Stored   int64  `json:"stored"`
	Raw      int64  `json:"raw"`
	Encoding string `json:"encoding"`
	CRC      string `json:"crc32c"`
	Good     *bool  `json:"good"` // null without --verify
	Why      string `json:"why,omitempty"`
}

func newInspectCommand(out *output, at *storage, models *modelStore) *cobra.Command {
	var model string
	var verify bool
	cmd := &cobra.Command{
		Use:   "inspect PAGE",
		Short: "Show one page: identity, place in its conversation, tokens, layers",
		Long: `Show one page: a file, or the first digits of a key. Tokens are shown as numbers,
and as text where the model is given with --model, or found in Ollama's model store
by the digest in the pages' manifest, which belongs to a key.`,
		Args: cli.Args(1, 1, "name one page: its file, or the first digits of its key"),
		RunE: func(cmd *cobra.Command, args []string) error {
			page, wrong, err := inspectPage(cmd.Context(), at, args[0], verify)
			if page == nil {
				return err
			}
			page.Model = models.names().of(page.Identity)
			var textErr error
			if page.Text, textErr = textOf(page.Tokens, model, models.blob(page.Identity[tierenv.KeyWeights])); textErr != nil {
				return textErr
			}
			return errors.Join(out.show(page, page.print), errors.Join(wrong...), err)
		},
	}
	cli.Flag(cmd.Flags(), &model, "model", "a GGUF file", "GGUF file of the model, to show tokens as text")
	cmd.Flags().BoolVar(&verify, "verify", false, "read the page and give a verdict on each section")
	return cmd
}

// inspectPage describes a page, and with verify returns an error for each section that is wrong. The
// page is nil where it cannot be read.
func inspectPage(ctx context.Context, at *storage, page string, verify bool) (out *inspected, wrong []error, err error) {
	file, files, identity, err := findPage(ctx, at, page)
	if err != nil {
		return nil, nil, err
	}
	header, wrong, err := inspect.ReadHeader(ctx, files, file.Path, verify)
	if header == nil {
		return nil, nil, err
	}
	out = describe(header, file, identity)
	for i, why := range wrong {
		good := why == nil
		out.Sections[i].Good = &good
		if !good {
			out.Sections[i].Why = why.Error()
		}
	}
	return out, wrong, err
}

// findPage returns the page that the argument names, the filesystem of its file, and its
// identity if it is known: not that of a page which is named by its file.
func findPage(ctx context.Context, at *storage, page string) (file inspect.PageFile, files vfs.FS, identity map[string]string, err error) {
	if strings.ContainsRune(page, filepath.Separator) || filepath.Ext(page) == ".kvp" {
		file.Path, files = page, vfs.OS
		if at.timeout > 0 {
			files = vfs.Bound(vfs.OS, filepath.Dir(page), at.timeout)
		}
		info, err := files.Lstat(page)
		if err != nil {
			return file, nil, nil, fmt.Errorf("inspect page: %w; name a page's file, or the first digits of its key", err)
		}
		file.Used = info.ModTime()
		return file, files, nil, nil
	}
	err = at.with(ctx, func(root *roots) error {
		var err error
		if file, err = onePage(ctx, root, at.places(), page); err != nil {
			return err
		}
		files = root.files(file)
		// A page without a manifest can be inspected, too.
		if m, err := root.Manifest(ctx, file.Fingerprint); err == nil {
			identity = m.Identity
		}
		return nil
	})
	return file, files, identity, err
}

// onePage finds the only page whose key begins with prefix.
func onePage(ctx context.Context, root *roots, places, prefix string) (inspect.PageFile, error) {
	found, err := root.Find(ctx, strings.ToLower(prefix))
	switch {
	case errors.Is(err, inspect.ErrArguments):
		return inspect.PageFile{}, cli.Usagef("%q is not the beginning of a key; give at least 4 digits, 0 to 9 and a to f", prefix)
	case err != nil:
		return inspect.PageFile{}, err
	case len(found) == 0:
		return inspect.PageFile{}, fmt.Errorf("no page in %s has a key that begins with %s", places, prefix)
	case len(found) > 1:
		return inspect.PageFile{}, fmt.Errorf("%s could be %v or %v; give more digits", prefix, found[0].Key, found[1].Key)
	}
	return found[0], nil
}

func describe(h *pagefile.Header, file inspect.PageFile, identity map[string]string) *inspected {
	out := &inspected{
		Key: h.Key.String(), Path: file.Path, Tier: file.Tier, Fingerprint: h.Fingerprint.String(), Identity: identity,
		Parent: h.Parent.String(), Start: int(h.Start), Tokens: h.Tokens, PageTokens: h.PageTokens, Tail: h.Tail(),
		Media: []media{}, FileBytes: h.FileBytes, LastUsed: show.Known(file.Used), Sections: []section{},
	}
	for _, m := range h.Media {
		out.Media = append(out.Media, media{int(m.Offset), fmt.Sprintf("%x", m.Hash)})
	}
	for _, s := range h.Sections {
		out.Sections = append(out.Sections, section{
			Group: int(s.Group), Layer: int(s.Layer), Kind: s.Kind.String(), RowBytes: int(s.RowBytes),
			Offset: s.Offset, Stored: s.Stored, Raw: s.Raw, Encoding: s.Encoding.String(), CRC: fmt.Sprintf("%08x", s.CRC),
		})
	}
	return out
}

// textOf returns tokens as text by a model's file: the one that the user names, or else one that was
// found, which may fail. It is nil without a model.
func textOf(tokens []int32, named, found string) (*string, error) {
	if named == "" && found == "" {
		return nil, nil
	}
	d, err := modelfile.OpenDecoder(cmp.Or(named, found))
	if err == nil {
		var text string
		if text, err = d.Text(tokens); err == nil {
			return &text, nil
		}
	}
	if named == "" {
		return nil, nil
	}
	return nil, err
}

func (out *inspected) print(w io.Writer) {
	what := "page"
	if out.Tail {
		what = "tail"
	}
	field(w, what, "%s", out.Key)
	field(w, "file", "%s", out.Path)
	if out.Tier != "" {
		field(w, "tier", "%s", out.Tier)
	}
	field(w, "size", "%s", humanBytes(out.FileBytes))
	if out.LastUsed != nil {
		field(w, "last used", "%s", when(*out.LastUsed))
	}
	field(w, "model", "%s", out.Model)
	field(w, "fingerprint", "%s", out.Fingerprint)
	for _, key := range slices.Sorted(maps.Keys(out.Identity)) {
		if out.Identity[key] != "" {
			field(w, "  "+key, "%s", out.Identity[key])
		}
	}
	field(w, "position", "tokens %s to %s, page %s of its conversation",
		count(out.Start), count(out.Start+len(out.Tokens)-1), count(out.Start/out.PageTokens+1))
	if out.Start == 0 {
		field(w, "after", "nothing: it is the first")
	} else {
		field(w, "after", "%s", out.Parent)
	}
	for _, m := range out.Media {
		field(w, "media", "at token %s, SHA-256 %s", count(out.Start+m.Offset), m.Hash)
	}
	fmt.Fprintf(w, "\n%s of %d:\n", plural(len(out.Tokens), "token"), out.PageTokens)
	for line := range slices.Chunk(out.Tokens, 16) {
		fmt.Fprintln(w, strings.Trim(fmt.Sprint(line), "[]"))
	}
	if out.Text != nil {
		fmt.Fprintf(w, "\ntext:\n%s\n", printable(*out.Text))
	}
	fmt.Fprintln(w)
	printSections(w, out.Sections)
}

func printSections(w io.Writer, sections []section) {
	header := []string{"GROUP", "LAYER", "KIND", "ROW BYTES", "OFFSET", "STORED", "RAW", "ENCODING", "CRC-32C"}
	verified := len(sections) > 0 && sections[0].Good != nil
	if verified {
		header = append(header, "VERDICT")
	}
	printTable(w, header, rowsOf(sections, func(s section) []string {
		row := []string{
			fmt.Sprint(s.Group), fmt.Sprint(s.Layer), s.Kind, fmt.Sprint(s.RowBytes), fmt.Sprint(s.Offset),
			fmt.Sprint(s.Stored), fmt.Sprint(s.Raw), s.Encoding, s.CRC,
		}
		if verified {
			row = append(row, map[bool]string{true: "good", false: "damaged"}[*s.Good])
		}
		return row
	}))
}
