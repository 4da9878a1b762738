package guard

import (
	"errors"
	"fmt"
	"runtime/debug"

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

// inOrder describes the files of the first len(infos) names, in the order of names.
func inOrder(infos []tier.Info, names []pagefile.Name) ([]tier.Info, error) {
	if len(infos) > len(names) {
		return nil, fmt.Errorf("%w: %d names were looked up, and %d files found", errAnswer, len(names), len(infos))
	}
	described := make([]tier.Info, len(infos))
	for i, info := range infos {
		if info.Name != names[i] {
			return nil, fmt.Errorf("%w: file %v was looked up, and %v found", errAnswer, names[i].Key, info.Key)
		}
		var err error
		if described[i], err = describe(info, info.Name); err != nil {
			return nil, err
		}
	}
	return described, nil
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

// try runs op and returns a panic as an error.
func try[T any](t *Tier, op func() (T, error)) (v T, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", errPanic, cause)
			t.panics.Do(func() {
				t.log.Error("kv tier panicked, later panics of it are not logged", "error", cause, "stack", string(debug.Stack()))
			})
		}
	}()
	return op()
}

// end runs fn, which releases a file or a lock, and recovers from its panic.
func (t *Tier) end(fn func()) {
	_, _ = try(t, func() (struct{}, error) {
		fn()
		return struct{}{}, nil
	})
}
