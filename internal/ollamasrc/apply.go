package ollamasrc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

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
