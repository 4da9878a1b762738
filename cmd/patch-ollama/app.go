package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/rogpeppe/go-internal/lockedfile"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// defaultDir is the build directory, relative to the repository's root.
const defaultDir = "build/ollama"

// stepNames is the width of the column that holds the names of steps.
const stepNames = 16

// app is shared by the verbs: the global flags and their resolved values.
type app struct {
	stdout, stderr io.Writer

	version string
	dir     string
	src     string
	without string

	// versionGiven: the user gave --version. Without --version, verbs use the release of the
	// existing tree.
	versionGiven bool
	dirGiven     bool
	// leftOut are the optional sets that --without names, if withoutGiven.
	leftOut      []string
	withoutGiven bool
	lay          ollamasrc.Layout
	patches      string // the folder of the series
}

func (a *app) addFlags(flags *pflag.FlagSet) {
	a.version, a.dir = ollamasrc.DefaultVersion, defaultDir
	cli.Flag(flags, &a.version, "version", "a release such as "+ollamasrc.DefaultVersion, "Ollama release, "+ollamasrc.OldestVersion+" … "+ollamasrc.NewestVersion)
	cli.Flag(flags, &a.dir, "dir", "a folder", "build directory; nothing is written outside it")
	cli.Flag(flags, &a.src, "src", "the folder of a clone", "git clone of Ollama to take releases from, instead of the Go module")
}

// addWithout adds --without to a verb that applies the series.
func (a *app) addWithout(flags *pflag.FlagSet, unset string) {
	cli.Flag(flags, &a.without, "without", `names of optional sets with commas between them, or "`+ollamasrc.NoSets+`"`,
		`optional patch sets to leave out, such as "paged", or "`+ollamasrc.NoSets+`"; default: `+unset)
}

// setup resolves the flags.
func (a *app) setup(flags *pflag.FlagSet) error {
	if err := cli.NoEmptyValues(flags); err != nil {
		return err
	}
	root, err := ollamasrc.FindRoot()
	if err != nil {
		return err
	}
	a.patches = filepath.Join(root, "patches")
	a.versionGiven, a.dirGiven = flags.Changed("version"), flags.Changed("dir")
	if err := ollamasrc.CheckVersion(a.version); err != nil {
		return cli.Usage(err)
	}
	if a.src != "" {
		if a.src, err = filepath.Abs(a.src); err != nil {
			return err
		}
	}
	if a.withoutGiven = flags.Changed("without"); a.withoutGiven {
		if a.leftOut, err = a.readWithout(); err != nil {
			return err
		}
	}
	dir := filepath.Join(root, defaultDir)
	if a.dirGiven {
		if dir, err = filepath.Abs(a.dir); err != nil {
			return err
		}
	}
	if a.lay, err = ollamasrc.NewLayout(root, dir); err != nil {
		return cli.Usage(err)
	}
	return nil
}

// readWithout reads the value of --without.
func (a *app) readWithout() ([]string, error) {
	if a.without == ollamasrc.NoSets {
		return nil, nil
	}
	sets, err := ollamasrc.Sets(a.patches)
	if err != nil {
		return nil, err
	}
	var leftOut []string
	for _, name := range strings.Split(a.without, ",") {
		if !slices.Contains(sets, name) {
			return nil, cli.Usagef("--without: there is no optional set %q in %s; there is %s", name, ollamasrc.Rel(a.patches), strings.Join(append(sets, ollamasrc.NoSets), ", "))
		}
		leftOut = append(leftOut, name)
	}
	slices.Sort(leftOut)
	return slices.Compact(leftOut), nil
}

// tree opens the existing source tree.
func (a *app) tree(ctx context.Context) (*ollamasrc.Tree, error) {
	t, err := ollamasrc.OpenTree(ctx, a.lay.Src())
	if err != nil {
		return nil, err
	}
	if a.versionGiven && t.Version != a.version {
		return nil, a.otherTree(t)
	}
	return t, nil
}

// otherTree refuses a tree of another release than the wanted one.
func (a *app) otherTree(t *ollamasrc.Tree) error {
	return fmt.Errorf("%s holds Ollama %s from a %s; use another folder with --dir, such as build/%s, or replace it with patch-ollama fetch %s--force",
		ollamasrc.Rel(t.Dir), t.Version, t.OriginKind(), a.version, a.wanted())
}

// wanted repeats, for advice, the flags that name the release and its folder.
func (a *app) wanted() string {
	var flags strings.Builder
	if a.version != ollamasrc.DefaultVersion {
		fmt.Fprintf(&flags, "--version %s ", a.version)
	}
	if a.src != "" {
		fmt.Fprintf(&flags, "--src %s ", ollamasrc.Rel(a.src))
	}
	if a.dirGiven {
		fmt.Fprintf(&flags, "--dir %s ", ollamasrc.Rel(a.lay.Dir))
	}
	return flags.String()
}

// series is the series of the patches folder for a tree: without the sets of --without, or
// those that the tree was patched without.
func (a *app) series(t *ollamasrc.Tree) (ollamasrc.Series, error) {
	leftOut := a.leftOut
	if !a.withoutGiven {
		var err error
		if leftOut, err = t.Without(); err != nil {
			return ollamasrc.Series{}, err
		}
	}
	return ollamasrc.LoadSeries(a.patches, t.Version, leftOut)
}

// patched opens the existing source tree, and its series.
func (a *app) patched(ctx context.Context) (t *ollamasrc.Tree, series ollamasrc.Series, err error) {
	if t, err = a.tree(ctx); err == nil {
		series, err = a.series(t)
	}
	return t, series, err
}

// lockPatience is the wait for a lock after which the user is told.
const lockPatience = 300 * time.Millisecond

// locked makes a verb run while no other patch-ollama uses the build directory.
func (a *app) locked(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		unlock, err := lock(cmd.Context(), a.lay, a.stderr)
		if err != nil {
			return err
		}
		defer unlock()
		return run(cmd.Context(), args)
	}
}

// lock locks a build directory. It tells of its wait.
func lock(ctx context.Context, lay ollamasrc.Layout, notices io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(lay.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the build directory: %w", err)
	}
	var locked func()
	done := make(chan error, 1)
	go func() {
		var err error
		locked, err = lockedfile.MutexAt(filepath.Join(lay.Dir, ".lock")).Lock()
		done <- err
	}()
	notice := time.After(lockPatience)
	for {
		select {
		case err := <-done:
			if err != nil {
				return nil, fmt.Errorf("locking the build directory: %w", err)
			}
			if err := lay.Sweep(); err != nil {
				locked()
				return nil, err
			}
			return locked, nil
		case <-notice:
			fmt.Fprintf(notices, "waiting for another patch-ollama in %s\n", ollamasrc.Rel(lay.Dir))
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
