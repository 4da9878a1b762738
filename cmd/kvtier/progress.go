package main

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar returns a function that shows how much of the bytes of a long verb is
// done, and one that takes the bar away. Both do nothing where nobody looks.
func (a *app) bar(what string) (show func(done, total int64), clear func()) {
	file, ok := a.stderr.(*os.File)
	if a.asJSON || !ok || !term.IsTerminal(int(file.Fd())) {
		return nil, func() {}
	}
	b := progressbar.NewOptions64(1,
		progressbar.OptionSetWriter(file),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionFullWidth(),
	)
	show = func(done, total int64) {
		if total > b.GetMax64() {
			b.ChangeMax64(total)
		}
		// A bar that cannot be drawn is no reason to stop.
		_ = b.Set64(done)
	}
	return show, func() { _ = b.Clear() }
}
