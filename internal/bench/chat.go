package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/table"
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
func (b *bench) measureChat(ctx context.Context) (err error) {
	r := &Chat{Turns: chatTurns, TokensPerTurn: chatTurnTokens}
	pause := chatPause
	if b.settings.quick {
		r.Turns, pause = 2, 0
	}
	b.report.Chat = r
	for _, chat := range []struct {
		name  string
		pause time.Duration
		ratio *float64
	}{{"at once", 0, &r.AtOnce}, {"apart", pause, &r.Apart}} {
		step := b.steps.Step(fmt.Sprintf("chat, %d turns %s", r.Turns, chat.name))
		*chat.ratio, err = b.chat(ctx, r, chat.pause)
		step.End(fmt.Sprintf("%.2f bytes written for each new byte", *chat.ratio), err)
		if err != nil {
			return err
		}
	}
	return nil
}

// chat returns the bytes written for each new byte of K and V.
func (b *bench) chat(ctx context.Context, r *Chat, pause time.Duration) (ratio float64, err error) {
	root := filepath.Join(b.dir, "pages-chat")
	ours, err := b.startOurs(ctx, root, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, ours.Close(), os.RemoveAll(root)) }()
	text := ""
	for range r.Turns {
		text += b.prompt(r.TokensPerTurn)
		if err := b.turn(ctx, ours, text, pause); err != nil {
			return 0, err
		}
	}
	if err := ours.Stop(); err != nil { // stores the last tail
		return 0, err
	}
	written, err := writtenTo(ctx, root)
	return float64(written) / float64(int64(r.Turns*r.TokensPerTurn)*b.shape.KVBytesPerToken()), err
}

// turn asks for one token, which is never computed itself, and waits.
func (b *bench) turn(ctx context.Context, l *lab.Lab, text string, pause time.Duration) error {
	if _, err := b.ask(ctx, l, text, 1); err != nil {
		return err
	}
	select {
	case <-time.After(pause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
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

func (c *Chat) print(w io.Writer) {
	fmt.Fprintf(w, "\nBytes written for each new byte of K and V, a chat of %d turns of %d tokens\n\n", c.Turns, c.TokensPerTurn)
	table.Print(w, []string{"TURNS", "WRITTEN"}, [][]string{
		{"at once", fmt.Sprintf("%.2f", c.AtOnce)},
		{fmt.Sprintf("%v apart", chatPause), fmt.Sprintf("%.2f", c.Apart)},
	})
}
