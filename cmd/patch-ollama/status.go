package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/spf13/cobra"
)

// status is the output of `status --json`. Fields that do not apply are empty.
type status struct {
	Dir     string   `json:"dir"`
	Fetched bool     `json:"fetched"`
	Version string   `json:"version"`
	Origin  string   `json:"origin"`
	Base    string   `json:"base"`
	Head    string   `json:"head"`
	Patches patches  `json:"patches"`
	Dirty   []string `json:"dirty"`

	Binary        string   `json:"binary"`
	BinaryVersion string   `json:"binary_version"`
	Libraries     []string `json:"libraries"`
}

type patches struct {
	Total      int      `json:"total"`
	Applied    int      `json:"applied"`
	OwnCommits int      `json:"own_commits"`
	InStep     bool     `json:"in_step"`
	Without    []string `json:"without"` // optional sets that were left out
}

func (p patches) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%d applied", p.Applied, p.Total)
	if len(p.Without) > 0 {
		fmt.Fprintf(&b, ", without %s", strings.Join(p.Without, ", "))
	}
	if !p.InStep && p.Applied > 0 {
		b.WriteString(", of an older series")
	}
	if p.OwnCommits > 0 {
		fmt.Fprintf(&b, ", %s of your own", ollamasrc.Plural(p.OwnCommits, "commit"))
	}
	return b.String()
}

func newStatusCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the source and the patches in the build directory",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.status(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return a.json(s)
			}
			a.printStatus(s)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) status(ctx context.Context) (status, error) {
	s := status{Dir: a.lay.Dir, Dirty: []string{}, Libraries: []string{}, Patches: patches{Without: []string{}}}
	t, err := ollamasrc.OpenTree(ctx, a.lay.Src())
	var series ollamasrc.Series
	switch {
	case err == nil:
		series, err = a.series(t)
	case errors.Is(err, ollamasrc.ErrNoTree):
		series, err = ollamasrc.LoadSeries(a.patches, a.version, nil)
	}
	if err != nil {
		return s, err
	}
	s.Patches.Total = len(series.Patches)
	if t != nil {
		if err := s.readTree(ctx, t, series); err != nil {
			return s, err
		}
	}
	return s, s.readBuild(ctx, a.lay)
}

func (s *status) readTree(ctx context.Context, t *ollamasrc.Tree, series ollamasrc.Series) error {
	state, err := t.Compare(ctx, series)
	if err != nil {
		return err
	}
	s.Fetched = true
	s.Version, s.Origin, s.Base, s.Head = t.Version, t.Origin, t.Base, state.Head
	s.Patches.Applied = state.Applied()
	s.Patches.OwnCommits = state.Own
	s.Patches.InStep = state.InStep
	s.Patches.Without = append(s.Patches.Without, series.Without...)
	s.Dirty = append(s.Dirty, state.Dirty...)
	return nil
}

// readBuild leaves the version empty for a binary that does not run.
func (s *status) readBuild(ctx context.Context, lay ollamasrc.Layout) error {
	if _, err := os.Stat(lay.Binary()); err == nil {
		s.Binary = lay.Binary()
		if s.BinaryVersion, err = ollamasrc.BinaryVersion(ctx, s.Binary); ctx.Err() != nil {
			return err
		}
	}
	libs, err := lay.Lib()
	s.Libraries = append(s.Libraries, libs...)
	return err
}

// shortHash is the number of digits of a commit in output.
const shortHash = 12

func (a *app) printStatus(s status) {
	line := func(name, value string) {
		fmt.Fprintf(a.stdout, "%-12s%s\n", name, value)
	}
	if !s.Fetched {
		line("version", "none; run patch-ollama fetch")
	} else {
		line("version", s.Version)
		line("source", s.Origin)
		line("base", s.Base[:shortHash])
		line("patches", s.Patches.String())
		line("tree", treeText(s.Dirty))
	}
	switch {
	case s.Binary == "":
		line("binary", "none; run patch-ollama build")
	case s.BinaryVersion == "":
		line("binary", ollamasrc.Rel(s.Binary)+" does not run; run patch-ollama build")
	default:
		line("binary", ollamasrc.Rel(s.Binary)+" "+s.BinaryVersion)
	}
	if len(s.Libraries) == 0 {
		line("libraries", "none")
	} else {
		line("libraries", strings.Join(s.Libraries, " "))
	}
}

func treeText(dirty []string) string {
	if len(dirty) == 0 {
		return "clean"
	}
	return fmt.Sprintf("%s uncommitted", ollamasrc.Plural(len(dirty), "change"))
}
