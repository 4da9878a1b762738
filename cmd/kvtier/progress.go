package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// bar shows how much of the bytes of a long verb is done. A nil bar shows
// nothing.
type bar struct{ b *progressbar.ProgressBar }

// newBar returns nil where nobody looks.
func (a *app) newBar(what string) *bar {
	if a.asJSON || !a.terminal {
		return nil
	}
	return &bar{progressbar.NewOptions64(1,
		progressbar.OptionSetWriter(a.screen),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionFullWidth(),
	)}
}

// show says how much is done. A bar that cannot be drawn is no reason to stop.
func (b *bar) show(done, total int64) {
	if b == nil {
		return
	}
	if total > b.b.GetMax64() {
		b.b.ChangeMax64(total)
	}
	_ = b.b.Set64(done)
}

// clear takes the bar away.
func (b *bar) clear() {
	if b != nil {
		_ = b.b.Clear()
	}
}
