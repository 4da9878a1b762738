package guard

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Another module may have written the tier below. Its panics and impossible answers are
// failures of the tier, and never reach the store.

// errNothing reports a tier that returned neither a result nor an error.
var errNothing = errors.New("diskstore: the tier returned neither a result nor an error")

// errAnswer reports a tier that returned an impossible description of files.
var errAnswer = errors.New("diskstore: the tier gave an impossible answer")

// describe returns the description of the file name. A file with bytes occupies space even if
// the tier reports none: budgets count it.
func describe(info tier.Info, name pagefile.Name) (tier.Info, error) {
	if info.Bytes < 0 {
		return tier.Info{}, fmt.Errorf("%w: file %v has %d bytes", errAnswer, name.Key, info.Bytes)
	}
	info.Name = name
	if info.Physical <= 0 {
		info.Physical = pagefile.AlignUp(info.Bytes)
	}
	return info, nil
}

// listed describes each file that belongs to the list, once: the pages of a server's listing
// may overlap.
func listed(infos []tier.Info, belongs func(pagefile.Name) bool) ([]tier.Info, error) {
	seen := make(map[pagefile.Name]bool, len(infos))
	once := make([]tier.Info, 0, len(infos))
	for _, info := range infos {
		if seen[info.Name] || !belongs(info.Name) {
			continue
		}
		seen[info.Name] = true
		info, err := describe(info, info.Name)
		if err != nil {
			return nil, err
		}
		once = append(once, info)
	}
	return once, nil
}

// errPanic reports a tier that panicked.
var errPanic = errors.New("diskstore: the tier panicked")

// panics logs the first panic of a tier, with its stack.
type panics struct {
	log  *slog.Logger
	once sync.Once
}

// try runs op and returns a panic as an error.
func try[T any](p *panics, op func() (T, error)) (v T, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", errPanic, cause)
			p.once.Do(func() {
				p.log.Error("kv tier panicked, later panics of it are not logged", "error", cause, "stack", string(debug.Stack()))
			})
		}
	}()
	return op()
}
