package llamatier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

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
	return llamastate.Learn(f, info.Size())
}

// shapeBytes is about the size of the file of one token: the states of recurrent layers may be some 10 MB.
const shapeBytes = 64 << 20

// UserStart finds the tokens with which a user's message begins in chats of an engine, from a control
// token on; nil if its template does not tell. A first message and a later one have them in common.
func UserStart(ctx context.Context, e *Engine, control func(token int32) bool) ([]int32, error) {
	message := func(role, content string) map[string]string {
		return map[string]string{"role": role, "content": content}
	}
	const first, between, later = "one question", "an answer", "another question"
	chat, err := json.Marshal(map[string]any{"messages": []any{message("user", first), message("assistant", between), message("user", later)}})
	if err != nil {
		return nil, fmt.Errorf("ask llama-server for a chat's form: %w", err)
	}
	text, err := e.Template(ctx, chat)
	if err != nil {
		return nil, err
	}
	before, rest, _ := strings.Cut(text, first)
	_, rest, _ = strings.Cut(rest, between)
	next, _, found := strings.Cut(rest, later)
	if !found {
		return nil, nil
	}
	var starts [2][]int32
	for i, text := range []string{before, next} { // a space may become a token with the words behind it
		if starts[i], err = e.Tokenize(ctx, strings.TrimSpace(text), true, true); err != nil {
			return nil, err
		}
		slices.Reverse(starts[i])
	}
	start := starts[0][:commonPrefix(starts[0], starts[1])]
	slices.Reverse(start)
	at := slices.IndexFunc(start, control)
	if at < 0 {
		return nil, nil
	}
	return start[at:], nil
}
