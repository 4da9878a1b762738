package collect

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/kvtier/kvtier/telemetry"
)

// Forget removes the latest prompts, with their Words, of all processes whose models are picked. A
// process that runs goes on with the prompts to come, and does not write the removed Words again.
// A file that cannot be removed keeps no other one.
func Forget(ctx context.Context, root string, picks func(telemetry.Model) bool) error {
	p, err := newPlace(root, Options{}.withDefaults())
	if err != nil {
		return err
	}
	return p.do(ctx, func() error {
		owner, err := ownerOf(p.dir, false)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		all, err := list(p.fs, p.dir)
		if err != nil {
			return err
		}
		for name, there := range all {
			if !there[wordsEnd] {
				continue
			}
			path := filepath.Join(p.dir, name+wordsEnd)
			r, failed := readReport(p.fs, path, owner)
			if failed == nil && !picks(r.Model) {
				continue
			}
			if failed == nil || errors.Is(failed, errContent) { // nobody knows whose that is
				failed = remove(p.fs, path)
			}
			if !errors.Is(failed, fs.ErrNotExist) { // its process has ended meanwhile
				err = errors.Join(err, failed)
			}
		}
		return err
	})
}
