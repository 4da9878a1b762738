package ollamasrc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Change is one file that differs between a tree's commits and a series.
type Change struct {
	Name string
	Kind string // "new", "changed" or "stale"
}

func (c Change) String() string { return c.Kind + " " + c.Name }

// Diff renders the commits since upstream as patches and compares them with the
// series.
func (t *Tree) Diff(ctx context.Context, lay Layout, series Series) (fresh Series, changes []Change, err error) {
	state, err := t.Compare(ctx, series)
	if err != nil {
		return Series{}, nil, err
	}
	if err := t.CheckClean(state); err != nil {
		return Series{}, nil, err
	}
	fresh, err = t.render(ctx, lay)
	if err != nil {
		return Series{}, nil, err
	}
	return fresh, diffSeries(series, fresh), nil
}

// Format makes the patches folder hold exactly the commits since upstream, and
// returns what it changed there.
//
// Patches that were edited since they were applied, or never were applied,
// would be lost; that takes force.
func (t *Tree) Format(ctx context.Context, lay Layout, series Series, force bool) ([]Change, error) {
	fresh, changes, err := t.Diff(ctx, lay, series)
	if err != nil {
		return nil, err
	}
	last, err := t.readApplied()
	if err != nil {
		return nil, err
	}
	if unseen := len(series.Patches) > 0 && last.digest != series.Digest(); unseen && len(changes) > 0 && !force {
		return nil, fmt.Errorf("%s holds patches that are not applied to %s and would be lost (%s); run patch-ollama apply first, or format --force",
			Rel(series.Dir), Rel(t.Dir), changes[0])
	}
	if err := writeSeries(series.Dir, fresh, changes); err != nil {
		return nil, fmt.Errorf("writing the patch series: %w", err)
	}
	head, err := t.git.run(ctx, "rev-parse", "HEAD")
	if err != nil {
		return nil, err
	}
	fresh.Dir = series.Dir
	return changes, t.writeApplied(applied{digest: fresh.Digest(), head: head})
}

// render runs git format-patch as Ollama's own Makefile does.
func (t *Tree) render(ctx context.Context, lay Layout) (Series, error) {
	tmp, err := tempDir(lay.Dir, formatTemp)
	if err != nil {
		return Series{}, err
	}
	defer os.RemoveAll(tmp)
	_, err = t.git.run(ctx, "format-patch", "--quiet", "--no-signature", "--no-numbered", "--zero-commit",
		"--output-directory", tmp, upstreamTag+"..HEAD")
	if err != nil {
		return Series{}, err
	}
	return LoadSeries(tmp)
}

func diffSeries(old, fresh Series) []Change {
	data := map[string][]byte{}
	for _, p := range old.Patches {
		data[p.Name] = p.Data
	}
	var changes []Change
	for _, p := range fresh.Patches {
		was, ok := data[p.Name]
		switch {
		case !ok:
			changes = append(changes, Change{p.Name, "new"})
		case !bytes.Equal(was, p.Data):
			changes = append(changes, Change{p.Name, "changed"})
		}
		delete(data, p.Name)
	}
	for name := range data {
		changes = append(changes, Change{name, "stale"})
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Name, b.Name) })
	return changes
}

// writeSeries touches only files that differ.
func writeSeries(dir string, fresh Series, changes []Change) error {
	if len(changes) > 0 {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, c := range changes {
		path := filepath.Join(dir, c.Name)
		if c.Kind == "stale" {
			if err := os.Remove(path); err != nil {
				return err
			}
			continue
		}
		i := slices.IndexFunc(fresh.Patches, func(p Patch) bool { return p.Name == c.Name })
		if err := os.WriteFile(path, fresh.Patches[i].Data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
