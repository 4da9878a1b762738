package diskstore

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// condemnedLocal and condemnedRemote are how many files may fail their check in
	// condemnHour. After that a process moves none to quarantine before it has found
	// none damaged for as long: many damaged pages at once are rather a machine that
	// reads them wrong. What is in the remote tier belongs to others as well.
	condemnedLocal  = 16
	condemnedRemote = 4
	condemnHour     = time.Hour

	// condemnSound is how many files of the remote tier a process must have found
	// good for each one of it that it condemns after the first.
	condemnSound = 8

	// maxBadPages bounds how many files a process remembers as bad; the oldest is
	// forgotten first. Each is looked at again after badLife.
	maxBadPages = 1024
	badLife     = time.Hour
)

// verdicts is what one process thinks of a tier's files: how many it may still
// condemn, and which are not fit for use and still in their place. Those are as
// good as not stored: a Put of such a page replaces the file.
type verdicts struct {
	limit  int // of files that fail in condemnHour
	needed int // files found good for each one condemned after the first
	now    func() time.Time

	mu      sync.Mutex
	failed  []time.Time // when files did lately, in order, condemned or not
	sound   int         // files that were found good since the last one condemned
	lastBad time.Time
	spent   bool // the limit was passed, and damage goes on
	logged  bool // that a file was read wrong
	bad     map[pagefile.Name]badFile
	order   []pagefile.Name // of bad, oldest first
}

// badFile is a file that failed its check. One that was replaced or touched since
// is another.
type badFile struct {
	bytes int64
	used  time.Time
	since time.Time
}

func newVerdicts(name string, now func() time.Time) *verdicts {
	v := &verdicts{limit: condemnedLocal, now: now, bad: make(map[pagefile.Name]badFile)}
	if name == tier.Remote {
		v.limit, v.needed = condemnedRemote, condemnSound
	}
	return v
}

// good notes that a file passed its check.
func (v *verdicts) good() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sound = min(v.sound+1, condemnSound)
}

// mayCondemn notes that a file failed its check twice, and reports whether it may
// be moved to quarantine. enough is true when the limit has just been passed. A file
// that stays for want of good ones counts as well: a machine that reads all files
// wrong finds none good.
func (v *verdicts) mayCondemn() (ok, enough bool) {
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

// markBad remembers a file that stays in its place though it is not fit for use.
func (v *verdicts) markBad(info tier.Info) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, known := v.bad[info.Name]; !known {
		v.order = append(v.order, info.Name)
	}
	v.bad[info.Name] = badFile{bytes: info.Bytes, used: info.Used, since: v.now()}
	for len(v.order) > maxBadPages {
		delete(v.bad, v.order[0])
		v.order = v.order[1:]
	}
}

// isBad reports whether a file is one that failed its check here lately.
func (v *verdicts) isBad(info tier.Info) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	file, known := v.bad[info.Name]
	return known && file.bytes == info.Bytes && file.used.Equal(info.Used) && v.now().Sub(file.since) < badLife
}

// replaced forgets what was thought of the file that had a name before.
func (v *verdicts) replaced(name pagefile.Name) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, known := v.bad[name]; known {
		delete(v.bad, name)
		v.order = slices.DeleteFunc(v.order, func(n pagefile.Name) bool { return n == name })
	}
}

// readWrong logs, once for each process and tier, that a file was damaged when it
// was read first and good when it was read past the cache.
func (v *verdicts) readWrong(log *slog.Logger, tier string, name pagefile.Name, first error) {
	v.mu.Lock()
	logged := v.logged
	v.logged = true
	v.mu.Unlock()
	if !logged {
		log.Warn("kv page was read wrong once and is good: this machine's memory, disk or network may be failing",
			"page", name.Key.String(), "tier", tier, "first", first)
	}
}
