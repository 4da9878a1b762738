package llamatier

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier/slotfile"
)

// Shape finds the shape of an engine's files: it computes one token in a slot, saves the slot
// and empties it again. The engine must not have answered any request yet. Shape returns an
// error when ctx ends, although the engine may still use its file.
func Shape(ctx context.Context, e *Engine, files *slotfile.Files) (*llamastate.Shape, error) {
	if _, err := e.Prefill(ctx, 0, []int32{0}, Listener{}); err != nil {
		return nil, err
	}
	learned := make(chan struct{})
	var shape *llamastate.Shape
	var err error
	go func() { // a disk may hang
		defer close(learned)
		shape, err = learn(ctx, e, files)
	}()
	select {
	case <-learned:
		return shape, err
	case <-ctx.Done():
		return nil, fmt.Errorf("llama-server does not save a slot: %w", ctx.Err())
	}
}

// learn has the engine save a slot, and reads the file's shape.
func learn(ctx context.Context, e *Engine, files *slotfile.Files) (*llamastate.Shape, error) {
	f, err := files.New(shapeBytes)
	if err != nil {
		return nil, err
	}
	defer f.Close() // nothing is lost: the file was learned from
	if err := errors.Join(e.Save(ctx, 0, f.Name), e.Erase(ctx, 0)); err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	shape, err := llamastate.Learn(f, info.Size())
	if err != nil {
		return nil, err
	}
	return shape, nil
}

// shapeBytes is about the size of the file of one token: the states of recurrent layers may be
// some 10 MB.
const shapeBytes = 64 << 20
