package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// forgetMost bounds the wait for a disk.
const forgetMost = time.Second

// Forget removes the latest prompts, with their Words, of all processes whose models are picked. A
// process that runs goes on with the prompts behind its next report, and does not write earlier ones again.
// A file that does not tell its model is asked for with the zero Model. A file that cannot be removed keeps no other one.
func Forget(ctx context.Context, root string, picks func(telemetry.Model) bool) error {
	p, err := newPlace(root, Options{}.withDefaults())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, forgetMost)
	defer cancel()
	return until(ctx, 0, func() error {
		if _, err := p.fs.Lstat(p.dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		lock, err := p.lockFold(forgetMost / 2)
		if err != nil {
			return fmt.Errorf("remove prompts in %s: %w", p.dir, err)
		}
		defer lock.Close()
		names, err := p.list()
		if err != nil {
			return err
		}
		for _, name := range names {
			if failed := p.forget(name, picks); !errors.Is(failed, fs.ErrNotExist) { // it has ended meanwhile
				err = errors.Join(err, failed)
			}
		}
		return err
	})
}

// forget removes the prompts of one process. One that runs may have some in memory, so it gets an
// empty file: see prompts.
func (p *place) forget(name string, picks func(telemetry.Model) bool) error {
	e := entry{name: name}
	p.examine(&e)
	r, err := p.readPrompts(name + wordsEnd)
	if errors.Is(err, fs.ErrNotExist) && e.report != nil {
		r, err = e.report, nil
	}
	if errors.Is(err, errContent) {
		r, err = new(report), nil
	}
	if err != nil || !picks(r.Model) {
		return err
	}
	if !e.ended {
		return p.replace(name+wordsEnd, nil)
	}
	return p.remove(name + wordsEnd)
}
