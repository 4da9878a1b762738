package ollamasrc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// upstreamTag marks the commit that holds Ollama's files as released.
const upstreamTag = "upstream"

// Tree is a materialized source tree: a git repository whose first commit is a
// release of Ollama.
type Tree struct {
	Dir     string
	Version string // the release, such as v0.16.1
	Origin  string // as [Source.Origin]
	Base    string // the commit tagged upstream

	git git
}

// ErrNoTree is returned when nothing has been materialized yet.
var ErrNoTree = errors.New("there is no Ollama source yet; run patch-ollama fetch")

// OpenTree reads the message of the upstream tag. OpenTree refuses a folder that
// patch-ollama did not make, because verbs reset and remove files in a tree.
func OpenTree(ctx context.Context, dir string) (*Tree, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoTree
	} else if err != nil {
		return nil, fmt.Errorf("opening the source tree: %w", err)
	}
	foreign := fmt.Errorf("%s exists but was not made by patch-ollama; give another folder with --dir", Rel(dir))
	// Without a repository of its own, git would answer for an enclosing one.
	if _, err := os.Stat(filepath.Join(dir, ".git")); err != nil {
		return nil, foreign
	}
	t := &Tree{Dir: dir, git: git{dir: dir, own: true}}
	out, err := t.git.run(ctx, "log", "-1", "--format=%H%n%B", upstreamTag)
	if errors.Is(err, errNoGit) || ctx.Err() != nil {
		return nil, err
	}
	lines := strings.Split(out, "\n")
	if err != nil || len(lines) < 2 {
		return nil, foreign
	}
	var ok bool
	if t.Version, ok = strings.CutPrefix(lines[1], "ollama "); !ok {
		return nil, foreign
	}
	t.Base = lines[0]
	for _, line := range lines[2:] {
		if origin, ok := strings.CutPrefix(line, "Origin: "); ok {
			t.Origin = origin
		}
	}
	return t, nil
}

// Fetch materializes a release in lay.Src() and returns its tree. Fetch replaces an existing
// tree; the caller has checked that the tree has nothing to lose.
//
// The new tree is built in a temporary folder and moved in as a whole, so that a failure
// leaves the old tree.
func Fetch(ctx context.Context, lay Layout, source Source) (*Tree, error) {
	tmp, err := tempDir(lay.Dir, sourceTemp)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	fresh, old := filepath.Join(tmp, "new"), filepath.Join(tmp, "old")
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return nil, err
	}
	if err := source.Export(ctx, fresh); err != nil {
		return nil, fmt.Errorf("materializing Ollama %s: %w", source.Version(), err)
	}
	if err := initTree(ctx, fresh, source); err != nil {
		return nil, fmt.Errorf("making a git repository of Ollama %s: %w", source.Version(), err)
	}
	if err := os.Rename(lay.Src(), old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("moving the old source tree away: %w", err)
	}
	if err := os.Rename(fresh, lay.Src()); err != nil {
		return nil, fmt.Errorf("moving the new source tree into place: %w", err)
	}
	return OpenTree(ctx, lay.Src())
}

// initTree turns a folder of released files into a repository with one commit.
func initTree(ctx context.Context, dir string, source Source) error {
	g := git{dir: dir, own: true, env: []string{
		"GIT_AUTHOR_DATE=" + baseDate,
		"GIT_COMMITTER_DATE=" + baseDate,
	}}
	message := fmt.Sprintf("ollama %s\n\nOrigin: %s\n", source.Version(), source.Origin())
	for _, args := range [][]string{
		{"init", "--quiet", "--template=", "--initial-branch=kvtier"},
		// --force: Ollama's .gitignore names folders that its releases contain.
		{"add", "--all", "--force", "."},
		{"commit", "--quiet", "--no-verify", "--message", message},
		{"tag", upstreamTag},
	} {
		if _, err := g.run(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// Names of temporary folders that are used under the build directory's lock.
const (
	sourceTemp = "src"
	formatTemp = "format"
)

// Sweep removes leftovers of killed runs. The caller holds the build
// directory's lock.
func (l Layout) Sweep() error {
	entries, err := os.ReadDir(l.Dir)
	for _, entry := range entries {
		purpose, _, _ := strings.Cut(strings.TrimPrefix(entry.Name(), "."), "-")
		if strings.HasPrefix(entry.Name(), ".") && (purpose == sourceTemp || purpose == formatTemp) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(l.Dir, entry.Name())))
		}
	}
	if err != nil {
		return fmt.Errorf("removing leftovers of an earlier run: %w", err)
	}
	return nil
}

// tempDir makes a temporary folder inside the build directory: nothing is written elsewhere.
func tempDir(dir, purpose string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the build directory: %w", err)
	}
	tmp, err := os.MkdirTemp(dir, "."+purpose+"-")
	if err != nil {
		return "", fmt.Errorf("making a temporary folder in the build directory: %w", err)
	}
	return tmp, nil
}

// OriginKind is the first word of the origin: "module" or "clone".
func (t *Tree) OriginKind() string {
	kind, _, _ := strings.Cut(t.Origin, " ")
	return kind
}

// Vendored reports whether the tree has the C headers that the Go module lacks.
func (t *Tree) Vendored() bool {
	_, err := os.Stat(filepath.Join(t.Dir, "llama", "llama.cpp", "vendor"))
	return err == nil
}

// Dirty lists uncommitted changes, in the form of git status --short.
func (t *Tree) Dirty(ctx context.Context) ([]string, error) {
	out, err := t.git.run(ctx, "status", "--porcelain")
	if err != nil || out == "" {
		return nil, err
	}
	return strings.Split(out, "\n"), nil
}

// applied records the state after the last apply or format.
type applied struct {
	digest  string   // digest of the series
	head    string   // last commit of the series
	without []string // optional sets that were left out
}

func (t *Tree) appliedPath() string {
	return filepath.Join(t.Dir, ".git", "kvtier-applied")
}

// readApplied returns the empty series on the release itself when there is no readable
// record: then every commit counts as the user's own, and none is lost.
func (t *Tree) readApplied() (applied, error) {
	data, err := os.ReadFile(t.appliedPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return applied{}, fmt.Errorf("reading which series was applied: %w", err)
	}
	switch f := strings.Fields(string(data)); len(f) {
	case 2:
		return applied{digest: f[0], head: f[1]}, nil
	case 3:
		return applied{digest: f[0], head: f[1], without: strings.Split(f[2], ",")}, nil
	}
	return applied{digest: Series{}.Digest(), head: t.Base}, nil
}

// recordApplied notes that the tree's last commit is that of the series.
func (t *Tree) recordApplied(ctx context.Context, series Series) error {
	head, err := t.git.run(ctx, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	tmp := t.appliedPath() + ".tmp"
	line := strings.TrimSpace(series.Digest()+" "+head+" "+strings.Join(series.Without, ",")) + "\n"
	if err := os.WriteFile(tmp, []byte(line), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, t.appliedPath())
}

// Without lists the optional sets that were left out when the series was applied. A tree that
// was reverted has forgotten them.
func (t *Tree) Without() ([]string, error) {
	last, err := t.readApplied()
	return last.without, err
}

// State is a tree compared with a series.
type State struct {
	Head    string
	Commits int      // commits since upstream
	Own     int      // the user's own commits, which are in no series
	Dirty   []string // uncommitted changes
	// InStep is true when the commits except the user's own are exactly the present series
	// on disk.
	InStep bool
}

// Applied counts the commits that came from a series.
func (s State) Applied() int { return s.Commits - s.Own }

// Compare reads the tree's state against a series.
func (t *Tree) Compare(ctx context.Context, series Series) (State, error) {
	if _, err := os.Stat(filepath.Join(t.Dir, ".git", "rebase-apply")); err == nil {
		return State{}, fmt.Errorf("%s is in the middle of a git am; finish it there, or drop it with patch-ollama revert --force", Rel(t.Dir))
	}
	var s State
	var err error
	if s.Dirty, err = t.Dirty(ctx); err != nil {
		return State{}, err
	}
	if s.Head, err = t.git.run(ctx, "rev-parse", "HEAD"); err != nil {
		return State{}, err
	}
	if s.Commits, err = t.count(ctx, t.Base, s.Head); err != nil {
		return State{}, err
	}
	last, err := t.readApplied()
	if err != nil {
		return State{}, err
	}
	s.InStep = last.digest == series.Digest()
	switch s.Head {
	case last.head:
	case t.Base:
		// The user reverted the series by hand.
		s.InStep = len(series.Patches) == 0
	default:
		if s.Own, err = t.ownCommits(ctx, last.head, s); err != nil {
			return State{}, err
		}
	}
	return s, nil
}

// ownCommits counts the user's commits from the last commit of the series or, when that
// commit was rewritten, from upstream.
func (t *Tree) ownCommits(ctx context.Context, last string, s State) (int, error) {
	_, err := t.git.run(ctx, "merge-base", "--is-ancestor", last, s.Head)
	switch {
	case err == nil:
		return t.count(ctx, last, s.Head)
	case ctx.Err() != nil:
		return 0, ctx.Err()
	default:
		return s.Commits, nil
	}
}

func (t *Tree) count(ctx context.Context, from, to string) (int, error) {
	out, err := t.git.run(ctx, "rev-list", "--count", from+".."+to)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out)
}

// CheckClean refuses uncommitted changes, for verbs that would discard or overlook them.
func (t *Tree) CheckClean(s State) error {
	if len(s.Dirty) == 0 {
		return nil
	}
	more := ""
	if n := len(s.Dirty) - 1; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%s has uncommitted changes (%s%s); commit or stash them there first", Rel(t.Dir), strings.TrimSpace(s.Dirty[0]), more)
}

// CheckNothingToLose refuses uncommitted changes and commits that are in no series.
func (t *Tree) CheckNothingToLose(s State) error {
	if err := t.CheckClean(s); err != nil {
		return err
	}
	if s.Own > 0 {
		return fmt.Errorf("%s has %s that patches/ does not hold; keep them with patch-ollama format, or drop them with patch-ollama revert --force",
			Rel(t.Dir), Plural(s.Own, "commit"))
	}
	return nil
}

// Plural counts things in English.
func Plural(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "ch"):
		return fmt.Sprintf("%d %ses", n, noun)
	default:
		return fmt.Sprintf("%d %ss", n, noun)
	}
}

// Apply brings the tree in step with the series and reports whether the tree changed. The
// user's own commits on top of an unchanged series stay. A changed series is applied again
// from the release, which needs a tree with nothing to lose.
func (t *Tree) Apply(ctx context.Context, series Series) (changed bool, err error) {
	state, err := t.Compare(ctx, series)
	if err != nil {
		return false, err
	}
	if err := t.CheckClean(state); err != nil {
		return false, err
	}
	if state.InStep {
		return false, nil
	}
	if err := t.CheckNothingToLose(state); err != nil {
		return false, err
	}
	if err := t.reset(ctx); err != nil {
		return false, err
	}
	err = t.am(ctx, series)
	return err == nil, err
}

// am applies the whole series or nothing.
func (t *Tree) am(ctx context.Context, series Series) error {
	if len(series.Patches) > 0 {
		args := append([]string{"am", "--quiet", "--no-3way", "--committer-date-is-author-date"}, series.paths()...)
		if _, err := t.git.run(ctx, args...); err != nil {
			return t.amFailed(ctx, series, err)
		}
	}
	return t.recordApplied(ctx, series)
}

// undoTimeout bounds the clean-up that runs even after an interrupt.
const undoTimeout = 30 * time.Second

// amFailed names the patch at which git stopped, and resets the tree.
func (t *Tree) amFailed(ctx context.Context, series Series, cause error) error {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	// Commits made so far belong to the patches that applied.
	done, countErr := t.count(undo, t.Base, "HEAD")
	_, abortErr := t.git.run(undo, "am", "--abort")
	resetErr := t.reset(undo)
	switch err := errors.Join(countErr, resetErr); {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return errors.Join(cause, abortErr, err)
	case done >= len(series.Patches):
		return cause
	}
	return fmt.Errorf("%w; the source was left unpatched",
		misfit(ctx, cause, MisfitError{Version: t.Version, Patch: series.Patches[done].Name}))
}

// Revert resets the tree to the release. Without force it refuses when commits or changes
// would be lost. Build caches are outside the tree and stay.
func (t *Tree) Revert(ctx context.Context, series Series, force bool) (changed bool, err error) {
	if force {
		if _, err := os.Stat(filepath.Join(t.Dir, ".git", "rebase-apply")); err == nil {
			if _, err := t.git.run(ctx, "am", "--quit"); err != nil {
				return false, err
			}
		}
	}
	state, err := t.Compare(ctx, series)
	if err != nil {
		return false, err
	}
	if !force {
		if err := t.CheckNothingToLose(state); err != nil {
			return false, err
		}
	}
	if state.Head == t.Base && len(state.Dirty) == 0 {
		return false, nil
	}
	if force {
		if _, err := t.git.run(ctx, "clean", "--quiet", "-d", "--force"); err != nil {
			return false, err
		}
	}
	return true, t.reset(ctx)
}

// reset rewrites only the files that differ, so that the build stays
// incremental.
func (t *Tree) reset(ctx context.Context) error {
	if _, err := t.git.run(ctx, "reset", "--quiet", "--hard", upstreamTag); err != nil {
		return err
	}
	if err := os.Remove(t.appliedPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
