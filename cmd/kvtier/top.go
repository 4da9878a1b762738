package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/top"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/show"
)

// Size of a frame that is not for a terminal.
const (
	frameWidth  = 80
	frameHeight = 24
)

// rootList is the flag --root of top, which may be given several times. The first root is that
// of the configuration, too.
type rootList struct {
	a     *app
	roots []string
}

func (r *rootList) String() string { return strings.Join(r.roots, ",") }
func (r *rootList) Type() string   { return "string" }

func (r *rootList) Set(root string) error {
	if root == "" {
		return errors.New("a root is empty")
	}
	abs, err := filepath.Abs(root)
	if err != nil {
		return fmt.Errorf("find --root %s: %w", root, err)
	}
	if len(r.roots) == 0 {
		r.a.root = abs
	}
	r.roots = append(r.roots, abs)
	return nil
}

func newTopCommand(a *app) *cobra.Command {
	list := &rootList{a: a}
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch tiers, rates, slots and the latest prompts of servers",
		Long: `Watch tiers, rates, slots and the latest prompts of servers, once a second. Lines
of memory are the K/V memory that processes of this machine hold under a limit:
kvtier limit sets it.

With several servers, tab shows the next one: --root may be given several times,
and servers with an id are found below instances. q or Ctrl-C ends top. A server
that stops is waited for.

Off a terminal, or with --once, top prints one frame for each server; with
--json the state of each server, as an object of its own. NO_COLOR=1 leaves
colors out. Saved times are estimates.`,
		Example: `  kvtier top
  ssh -t gpu kvtier top --root /srv/kv-a --root /srv/kv-b`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.top(cmd.Context(), list.roots, once) },
	}
	cmd.Flags().Var(list, "root", "directory that holds v1; may be given several times")
	cli.Give(cmd.Flags(), "root", giveDir)
	cmd.Flags().BoolVar(&once, "once", false, "print one frame, and end")
	return cmd
}

func (a *app) top(ctx context.Context, roots []string, once bool) error {
	if len(roots) == 0 {
		roots = []string{a.config.Local}
	}
	opt := top.Options{
		Roots: func() []string { return top.Roots(roots) },
		Names: func() show.Name { return a.names().nameOf },
		Read:  a.readRoot,
		Held:  a.topHeld,
		Limit: a.timeout,
		ASCII: !unicodeLocale(),
	}
	if a.asJSON {
		return top.JSON(ctx, opt, a.json)
	}
	out := rawWriter(a.stdout)
	width, height, terminal := terminalSize(out)
	opt.Color = terminal && os.Getenv("NO_COLOR") == ""
	if once || !terminal {
		return top.Once(ctx, out, opt, width, height)
	}
	err := top.Run(ctx, out, opt)
	if ctx.Err() != nil {
		return context.Canceled
	}
	return err
}

// topHeld is the K/V memory that processes hold. Without segments, or where they cannot be read, there is
// none: kvtier limit tells why.
func (a *app) topHeld() []top.Held {
	all, err := a.heldMemory()
	if err != nil {
		return nil
	}
	var out []top.Held
	for _, h := range all {
		name := cmp.Or(h.Model, h.Name)
		if _, device, found := strings.Cut(h.Name, "_cuda"); found && h.Model != "" {
			name += " cuda" + device
		}
		out = append(out, top.Held{Name: name, Used: h.Used, Kept: h.Kept, Limit: h.Limit})
	}
	return out
}

// readRoot reads the state of one root.
func (a *app) readRoot(ctx context.Context, root string) (telemetry.State, error) {
	state, err := collect.Read(ctx, root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return state, errors.New("no server has reported there yet")
	case errors.Is(err, fs.ErrPermission):
		return state, fmt.Errorf("%w; run kvtier as the server's user, as sudo -u does", err)
	case errors.Is(err, context.DeadlineExceeded):
		return state, fmt.Errorf("no answer within %v from the collector of %s", a.timeout.Round(time.Millisecond), root)
	}
	return state, err
}

// rawWriter is the writer below a printer: package top escapes text by itself, and moves the
// cursor.
func rawWriter(w io.Writer) io.Writer {
	if p, ok := w.(printer); ok {
		return p.w
	}
	return w
}

// terminalSize is the size of a terminal that can move its cursor, or that of a frame.
func terminalSize(out io.Writer) (width, height int, terminal bool) {
	file, ok := out.(*os.File)
	if !ok || !progress.IsTerminal(out) || os.Getenv("TERM") == "dumb" {
		return frameWidth, frameHeight, false
	}
	width, height, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return frameWidth, frameHeight, true
	}
	return width, height, true
}

// unicodeLocale reports whether a terminal shows more than ASCII. A locale that is not set says
// nothing, and most terminals do.
func unicodeLocale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := strings.ToUpper(os.Getenv(name)); value != "" {
			return strings.Contains(value, "UTF-8") || strings.Contains(value, "UTF8")
		}
	}
	return true
}
