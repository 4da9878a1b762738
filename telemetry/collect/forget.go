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
			r, err := readReport(p.fs, path, owner)
			if err == nil && !picks(r.Model) {
				continue
			}
			if err == nil || errors.Is(err, errContent) { // nobody knows whose that is
				err = remove(p.fs, path)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
