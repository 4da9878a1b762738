package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/internal/bench/lab"
)

const (
	chatTurns      = 20
	chatTurnTokens = 300
	// chatPause is long enough for everything to be stored between two turns.
	chatPause = 4 * time.Second
)

// Chat is the number of bytes written to the local directory for each new byte of K and V, over a
// chat of many turns.
type Chat struct {
	Turns         int `json:"turns"`
	TokensPerTurn int `json:"tokens_per_turn"`
	// AtOnce is the ratio where each turn follows at once, as those of a program do; Apart where
	// people take their time.
	AtOnce float64 `json:"at_once"`
	Apart  float64 `json:"apart"`
}

// measureChat runs one chat at once and one with pauses.
func measureChat(ctx context.Context, r *rig) (any, error) {
	c := &Chat{Turns: chatTurns, TokensPerTurn: chatTurnTokens}
	pause := chatPause
	if r.quick {
		c.Turns, pause = 2, 0
	}
	for _, chat := range []struct {
		name  string
		pause time.Duration
		ratio *float64
	}{{"at once", 0, &c.AtOnce}, {"apart", pause, &c.Apart}} {
		err := r.Step(fmt.Sprintf("chat, %d turns %s", c.Turns, chat.name), func() (_ string, err error) {
			*chat.ratio, err = chatOnce(ctx, r, c, chat.pause)
			return fmt.Sprintf("%.2f bytes written for each new byte", *chat.ratio), err
		})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// chatOnce returns the bytes written for each new byte of K and V. A turn asks for one token, which is
// never computed itself.
func chatOnce(ctx context.Context, r *rig, c *Chat, pause time.Duration) (ratio float64, err error) {
	err = r.ours(ctx, lab.Options{}, func(ours *lab.Lab, root string) error {
		text := ""
		for range c.Turns {
			text += r.prompt(c.TokensPerTurn)
			if _, err := r.ask(ctx, ours, text, 1); err != nil {
				return err
			}
			time.Sleep(pause)
		}
		if err := ours.Stop(); err != nil { // stores the last tail
			return err
		}
		written, err := writtenTo(ctx, root)
		ratio = float64(written) / float64(int64(c.Turns*c.TokensPerTurn)*r.shape.KVBytesPerToken())
		return err
	})
	return ratio, err
}

// writtenTo is the number of bytes that were written to a local directory.
func writtenTo(ctx context.Context, root string) (bytes int64, err error) {
	r, err := diskstore.OpenRoot(ctx, diskstore.RootOptions{Local: diskstore.TierConfig{Root: root}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	usage, err := r.Usage(ctx)
	if err != nil {
		return 0, err
	}
	for _, day := range usage.Local.Written {
		bytes += day.Bytes
	}
	return bytes, nil
}
