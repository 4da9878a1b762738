package checked

import (
	"log/slog"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// CondemnedLocal and CondemnedRemote are the numbers of files that may fail their check within
	// condemnHour. After more failures a process moves no file to quarantine until condemnHour has passed
	// without a failure: many damaged pages at once suggest a machine that reads wrong bytes. The remote
	// tier's limit is lower because other machines use that tier as well.
	CondemnedLocal  = 16
	CondemnedRemote = 4
	condemnHour     = time.Hour

	// condemnSound is the number of good files of the remote tier that a process must have
	// found for each file that it condemns there, after the first.
	condemnSound = 8

	// maxBadPages bounds the files that a process remembers as bad. Each file is checked again after badLife.
	maxBadPages = 1024
	badLife     = time.Hour
)

// BadFiles are one process's results of checking a tier's files: the number of files that the
// process may still condemn, and the bad files that are still in their place. A bad file
// counts as not stored: a Put of that page replaces the file.
type BadFiles struct {
	*Seen // bad files in their place

	limit  int // of files that fail within condemnHour
	needed int // good files found for each one condemned after the first

	mu      sync.Mutex
	failed  []time.Time // times of recent failures, in order, condemned or not
	sound   int         // good files found since the last one condemned
	lastBad time.Time
	spent   bool // the limit was passed, and failures go on
	logged  bool // a file read wrong once was logged
}

// NewBadFiles returns those on the files of the local tier or, with far, of the remote one.
func NewBadFiles(far bool, now func() time.Time) *BadFiles {
	v := &BadFiles{Seen: newSeen(badLife, maxBadPages, now), limit: CondemnedLocal}
	if far {
		v.limit, v.needed = CondemnedRemote, condemnSound
	}
	return v
}

func (v *BadFiles) good() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sound = min(v.sound+1, condemnSound)
}

// MayCondemn notes that a file failed its check twice, and reports whether the file may be moved to
// quarantine. enough is true when this failure has just passed the limit. A file that stays because too few
// good files were found counts as well: a machine that reads all files wrong finds no good ones.
func (v *BadFiles) MayCondemn() (ok, enough bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.now()
	if v.spent && now.Sub(v.lastBad) >= condemnHour {
		v.spent, v.failed = false, nil
	}
	v.lastBad = now
	for len(v.failed) > 0 && now.Sub(v.failed[0]) >= condemnHour {
		v.failed = v.failed[1:]
	}
	switch {
	case v.spent:
		return false, false
	case len(v.failed) >= v.limit:
		v.spent = true
		return false, true
	}
	proven := len(v.failed) == 0 || v.sound >= v.needed
	v.failed = append(v.failed, now)
	if proven {
		v.sound = 0
	}
	return proven, false
}

// IsBad reports whether a file failed its check in this process within badLife.
func (v *BadFiles) IsBad(info tier.Info) bool {
	_, bad := v.Knows(info)
	return bad
}

// readWrong logs, once for each process and tier, that a file was damaged at the first read
// and good when read past the cache.
func (v *BadFiles) readWrong(log *slog.Logger, tier string, name pagefile.Name, first error) {
	v.mu.Lock()
	logged := v.logged
	v.logged = true
	v.mu.Unlock()
	if !logged {
		log.Warn("kv page was read wrong once and is good: this machine's memory, disk or network may be failing",
			"page", name.Key.String(), "tier", tier, "first", first)
	}
}
