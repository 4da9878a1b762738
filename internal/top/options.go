package top

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/show"
)

// Limits of the view.
const (
	ServersMax  = 64
	interval    = time.Second      // between two questions to a server
	lookEvery   = 10               // ticks between two looks for servers and names
	silentAfter = 15 * time.Second // after which a state that should be new is called old
)

// Options say which servers are shown, and how.
type Options struct {
	// Roots returns the directories of the servers. Names returns names for models. Both may
	// take their time; they are called again and again.
	Roots func() []string
	Names func() show.Name
	// Read returns the state of a root. It should end with its context.
	Read func(ctx context.Context, root string) (telemetry.State, error)

	// Held returns the K/V memory that processes of this machine hold and that has a limit. It may
	// take its time. Nil: none is shown.
	Held func() []Held

	Limit time.Duration // of one answer; 0 for none

	Color bool // else no escape sequences but those that move the cursor
	ASCII bool // the terminal has no other characters
	Now   func() time.Time

	every time.Duration // between two questions, in tests
}

// Held is the K/V memory that one process holds on one device, in bytes.
type Held struct {
	Name  string // of the model; that of the segment where the model is not known
	Used  int64  // for tokens there are
	Kept  int64  // for the next ones
	Limit int64
}

func (o Options) interval() time.Duration { return cmp.Or(o.every, interval) }

func (o Options) now() time.Time {
	if o.Now == nil {
		return time.Now()
	}
	return o.Now()
}

// Roots returns the servers' directories in and below given ones: each that has been used, and
// those of servers with an id, which are below instances. A directory without any is returned
// itself: its server may come.
func Roots(given []string) []string {
	var roots []string
	for _, root := range given {
		below, err := filepath.Glob(filepath.Join(escapeGlob(root), "instances", "*"))
		if err != nil {
			below = nil // the pattern is wrong, which escapeGlob prevents
		}
		below = slices.DeleteFunc(below, func(dir string) bool { return !used(dir) })
		if len(below) == 0 || used(root) {
			roots = append(roots, root)
		}
		roots = append(roots, below...)
	}
	slices.SortFunc(roots, func(a, b string) int { return cmp.Or(cmp.Compare(rank(a, given), rank(b, given)), cmp.Compare(a, b)) })
	roots = slices.Compact(roots)
	return roots[:min(len(roots), ServersMax)]
}

// rank puts directories that were given first, in their order.
func rank(root string, given []string) int {
	if i := slices.Index(given, root); i >= 0 {
		return i
	}
	return len(given)
}

// used reports whether a server has kept pages in a directory, or a collector its numbers.
func used(dir string) bool {
	for _, name := range []string{"telemetry", "v1"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.IsDir() {
			return true
		}
	}
	return false
}

// escapeGlob makes a pattern that matches one path.
func escapeGlob(path string) string {
	escaped := make([]rune, 0, len(path))
	for _, r := range path {
		if os.PathSeparator != '\\' && (r == '*' || r == '?' || r == '[' || r == '\\') {
			escaped = append(escaped, '\\')
		}
		escaped = append(escaped, r)
	}
	return string(escaped)
}
