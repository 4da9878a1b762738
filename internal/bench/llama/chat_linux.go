package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/kvtier/kvtier/internal/llamatest"
)

// Of the chat: its turns, and the tokens of each.
const (
	turns    = 20
	question = 200
	reply    = 100
)

// chat is the bytes written for each new byte of K and V.
type chat struct {
	Turns         int     `json:"turns"`
	TokensPerTurn int     `json:"tokens_per_turn"`
	Loaded        written `json:"model_stays_loaded"`
	Unloaded      written `json:"unloaded_after_each_turn"`
}

type written struct {
	Whole float64 `json:"whole_slot"`
	Ours  float64 `json:"ours"`
}

func (b *bench) measureChat(ctx context.Context) (any, error) {
	r := &chat{Turns: turns, TokensPerTurn: question + reply}
	for _, c := range []struct {
		side   side
		unload bool
		ratio  *float64
	}{{whole, false, &r.Loaded.Whole}, {whole, true, &r.Unloaded.Whole}, {ours, false, &r.Loaded.Ours}, {ours, true, &r.Unloaded.Ours}} {
		name := "the model stays"
		if c.unload {
			name = "unloaded each turn"
		}
		if err := b.Step(fmt.Sprintf("chat, %s, %s", c.side, name), func() (_ string, err error) {
			*c.ratio, err = b.chat(ctx, c.side, c.unload)
			return fmt.Sprintf("%.2f bytes written per new byte", *c.ratio), err
		}); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// chat returns the bytes that were written for each new byte of K and V. With the model loaded
// all the time, a whole slot is saved once, at the end.
func (b *bench) chat(ctx context.Context, s side, unload bool) (ratio float64, err error) {
	defer func() { err = errors.Join(err, b.clean()) }()
	starts, turns := 1, turns
	if unload {
		starts, turns = turns, starts
	}
	written := b.newFiles()
	var text []int32
	for range starts {
		_, err := b.ask(ctx, s, served{tokens: starts * turns * (question + reply)}, func(server *llamatest.Server) (a llamatest.Answer, err error) {
			for range turns {
				text = slices.Concat(text, b.tokens(question))
				if a, err = server.Complete(ctx, text, reply); err != nil {
					return a, err
				}
				text = append(text, a.Tokens...)
			}
			return a, nil
		})
		if err == nil {
			err = written.look(s == whole)
		}
		if err != nil {
			return 0, err
		}
	}
	return float64(written.bytes) / float64(int64(len(text))*b.shape.KVBytesPerToken()), nil
}

// newFiles adds up the sizes of files as they appear.
type newFiles struct {
	dirs  []string
	seen  map[string]bool
	bytes int64
}

// newFiles are the files of our pages and of whole slots.
func (b *bench) newFiles() *newFiles {
	return &newFiles{dirs: []string{b.root(), b.files()}, seen: make(map[string]bool)}
}

// look adds files that were not there before; with all, also those that were.
func (n *newFiles) look(all bool) error {
	for _, dir := range n.dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			var info fs.FileInfo
			if err == nil && d.Type().IsRegular() {
				info, err = d.Info()
			}
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil // a side without the folder, or a daemon that ends and removes its own
			case err != nil || info == nil || n.seen[path] && !all:
				return err
			}
			n.seen[path], n.bytes = true, n.bytes+info.Size()
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
