package ollamasrc

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Change is a file that differs between a tree's commits and a series.
type Change struct {
	Name string
	Kind string // "new", "changed" or "stale"
	data []byte // unless stale
}

func (c Change) String() string { return c.Kind + " " + c.Name }

// Diff renders the commits since upstream as patches and compares the patches that are
// written from this release's trees with the series. Diff fails when a commit that is
// written from another release's tree differs from the series.
func (t *Tree) Diff(ctx context.Context, lay Layout, series Series) ([]Change, error) {
	state, err := t.Compare(ctx, series)
	if err != nil {
		return nil, err
	}
	if err := t.CheckClean(state); err != nil {
		return nil, err
	}
	rendered, err := t.render(ctx, lay, series.Without)
	if err != nil {
		return nil, err
	}
	// Patches of optional sets are written from trees with all sets: each stands on those before it.
	away := func(p Patch) bool {
		return p.home() != t.Version || p.set != "" && len(series.Without) > 0
	}
	if err := t.checkAway(series.Dir, only(series.Patches, away), only(rendered.Patches, away)); err != nil {
		return nil, err
	}
	home := func(p Patch) bool { return !away(p) }
	return diffPatches(only(series.Patches, home), only(rendered.Patches, home)), nil
}

func only(patches []Patch, keep func(Patch) bool) (kept []Patch) {
	for _, p := range patches {
		if keep(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// Format writes the commits since upstream to the patches folder, as far as they are written
// from this release's trees, and returns the changes made there. Overlays for other releases
// stay.
//
// Without force, Format refuses to lose patches that were edited since they were applied, or
// were never applied.
func (t *Tree) Format(ctx context.Context, lay Layout, series Series, force bool) ([]Change, error) {
	changes, err := t.Diff(ctx, lay, series)
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
	if err := series.write(changes); err != nil {
		return nil, fmt.Errorf("writing the patch series: %w", err)
	}
	written, err := LoadSeries(series.Dir, t.Version, series.Without)
	if err != nil {
		return nil, err
	}
	return changes, t.recordApplied(ctx, written)
}

// checkAway refuses to format a tree with a changed patch that is written from another
// release's tree: the change would be lost.
func (t *Tree) checkAway(dir string, old, fresh []Patch) error {
	for i, p := range fresh {
		if i >= len(old) || old[i].Name != p.Name || !bytes.Equal(withoutPositions(old[i].Data), withoutPositions(p.Data)) {
			return fmt.Errorf("the commit of %s in %s, which holds Ollama %s, is not as in %s, and it is written from a tree of %s: change it there, or run patch-ollama apply here if it was changed there; a commit for some releases only has the trailer %q",
				p.Name, Rel(t.Dir), t.Version, Rel(dir), p.homeTree(), releasesTrailer+": v0.17.1+")
		}
	}
	if len(old) > len(fresh) {
		return fmt.Errorf("%s is not applied to %s; run patch-ollama apply first", old[len(fresh)].Name, Rel(t.Dir))
	}
	return nil
}

// position matches the lines of a patch that differ between the trees of two releases:
// the names of whole files, line numbers and the function that git shows beside them.
var position = regexp.MustCompile(`(?m)^(index [0-9a-f]+\.\.[0-9a-f]+.*|@@ -[0-9,]+ \+[0-9,]+ @@.*)$`)

func withoutPositions(patch []byte) []byte { return position.ReplaceAll(patch, []byte("@@")) }

// commit is a commit since upstream.
type commit struct {
	hash    string
	subject string
	place
}

// commits lists the commits since upstream, oldest first, and refuses an order that differs
// from the order of application, and commits of sets that the tree is without.
func (t *Tree) commits(ctx context.Context, leftOut []string) ([]commit, error) {
	out, err := t.git.run(ctx, "log", "--reverse", "--topo-order", "--no-merges", "--format=%H%n%B%x00", upstreamTag+"..HEAD")
	if err != nil {
		return nil, err
	}
	var list []commit
	for _, text := range strings.Split(out, "\x00") {
		hash, message, found := strings.Cut(strings.TrimSpace(text), "\n")
		if !found {
			continue
		}
		c := commit{hash: hash}
		c.subject, _, _ = strings.Cut(message, "\n")
		if c.place, err = parsePlace(message); err != nil {
			return nil, fmt.Errorf("the trailer of the commit %q: %w", c.subject, err)
		}
		if i := slices.Index(leftOut, c.set); i >= 0 {
			others := strings.Join(slices.Delete(slices.Clone(leftOut), i, i+1), ",")
			return nil, fmt.Errorf("the commit %q is of the set %s, and %s was patched without that set; put the set on first, with patch-ollama apply --without %s",
				c.subject, c.set, Rel(t.Dir), cmp.Or(others, NoSets))
		}
		if !c.contains(t.Version) {
			return nil, fmt.Errorf("the commit %q is for %s, but %s holds Ollama %s", c.subject, c.folder, Rel(t.Dir), t.Version)
		}
		if n := len(list); n > 0 && comparePlaces(list[n-1].place, c.place) > 0 {
			return nil, fmt.Errorf("the commit %q stands before %q, but patches for all releases are applied first and overlays after them, by where they begin, and optional sets last, by name; order the commits with git rebase -i %s",
				list[n-1].subject, c.subject, upstreamTag)
		}
		list = append(list, c)
	}
	return list, nil
}

// render runs git format-patch as Ollama's own Makefile does. Each folder counts its own
// numbers.
func (t *Tree) render(ctx context.Context, lay Layout, leftOut []string) (Series, error) {
	list, err := t.commits(ctx, leftOut)
	if err != nil {
		return Series{}, err
	}
	tmp, err := tempDir(lay.Dir, formatTemp)
	if err != nil {
		return Series{}, err
	}
	defer os.RemoveAll(tmp)
	number := map[string]int{}
	for _, c := range list {
		number[c.folder]++
		folder := filepath.Join(tmp, filepath.FromSlash(c.folder))
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return Series{}, err
		}
		_, err := t.git.run(ctx, "format-patch", "--quiet", "--no-signature", "--no-numbered", "--zero-commit",
			"--start-number", strconv.Itoa(number[c.folder]), "--output-directory", folder, "-1", c.hash)
		if err != nil {
			return Series{}, err
		}
	}
	rendered, err := LoadSeries(tmp, t.Version, nil)
	for i := range rendered.Patches {
		rendered.Patches[i].Data = withSender(rendered.Patches[i].Data)
	}
	return rendered, err
}

// Sender is the sender of every patch: the author of a change is in the project's own history, and a
// developer's name in a tree of Ollama does not count.
const Sender = "kvtier <kvtier@users.noreply.github.com>"

// fromHeader matches the sender of a patch, which git folds where it is long.
var fromHeader = regexp.MustCompile(`\A(From .*\n)From: .*\n(?:[ \t].*\n)*`)

func withSender(patch []byte) []byte {
	return fromHeader.ReplaceAll(patch, []byte("${1}From: "+Sender+"\n"))
}

func diffPatches(old, fresh []Patch) []Change {
	stale := map[string][]byte{}
	for _, p := range old {
		stale[p.Name] = p.Data
	}
	var changes []Change
	for _, p := range fresh {
		was, known := stale[p.Name]
		delete(stale, p.Name)
		switch {
		case !known:
			changes = append(changes, Change{p.Name, "new", p.Data})
		case !bytes.Equal(was, p.Data):
			changes = append(changes, Change{p.Name, "changed", p.Data})
		}
	}
	for name := range stale {
		changes = append(changes, Change{Name: name, Kind: "stale"})
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Name, b.Name) })
	return changes
}

// write touches only files that differ. The folder of an overlay or a set goes with its last
// patch.
func (s Series) write(changes []Change) error {
	for _, c := range changes {
		file := s.path(c.Name)
		if c.Kind != "stale" {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(file, c.data, 0o644); err != nil {
				return err
			}
			continue
		}
		if err := os.Remove(file); err != nil {
			return err
		}
		for folder := filepath.Dir(file); folder != filepath.Clean(s.Dir); folder = filepath.Dir(folder) {
			// A folder with other files stays.
			_ = os.Remove(folder)
		}
	}
	return nil
}
