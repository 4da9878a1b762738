package checked

import (
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

/*
A page that moves down leaves the local tier, so its copy in the remote tier must be good. To
read a copy takes as long as to write one, and most pages that move down have been there before:
they moved up when they were read, and every byte was checked on the way. So a process remembers
the copies that it wrote or checked. Pages are never changed in place. Another file of the same
name has another time or another header.

Only a changed file is noticed. A device that loses bytes of a file at rest changes neither its
time nor its length, so a copy counts as good for CopyLife. The next Read of the page finds the
loss in any case, and the page is computed again.
*/
const (
	// CopyLife is the time for which a checked copy counts as good.
	CopyLife = 24 * time.Hour

	// MaxCopies bounds the memory of copies, to about 2 MiB.
	MaxCopies = 8192
)

// Seen are files of one tier with the same result of a check by this process, for some time. Of more
// than the most that are kept, the oldest are forgotten.
type Seen struct {
	life time.Duration
	most int
	now  func() time.Time

	mu    sync.Mutex
	files map[pagefile.Name]seenFile
	order []pagefile.Name // keys of files, oldest first
}

// seenFile is a checked file. A file with another length or time is another file.
type seenFile struct {
	bytes int64
	used  time.Time
	crc   uint32 // of the header, which has the checksums of all rows; 0 where nobody asks
	since time.Time
}

func newSeen(life time.Duration, most int, now func() time.Time) *Seen {
	return &Seen{life: life, most: most, now: now, files: make(map[pagefile.Name]seenFile)}
}

// Note notes a checked file, and the checksum of its header.
func (s *Seen) Note(info tier.Info, crc uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.files[info.Name]; !known {
		s.order = append(s.order, info.Name)
	}
	s.files[info.Name] = seenFile{bytes: info.Bytes, used: info.Used, crc: crc, since: s.now()}
	for len(s.order) > s.most {
		delete(s.files, s.order[0])
		s.order = s.order[1:]
	}
}

// Knows reports whether a file was noted, lately enough, and with which checksum.
func (s *Seen) Knows(info tier.Info) (crc uint32, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	file, known := s.files[info.Name]
	return file.crc, known && file.is(info) && s.now().Sub(file.since).Abs() < s.life
}

func (f seenFile) is(info tier.Info) bool { return f.bytes == info.Bytes && f.used.Equal(info.Used) }

// Touched notes that this process has given a file, last seen as info, another time. Nobody has looked for an info
// of a name alone.
func (s *Seen) Touched(info tier.Info, used time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if file, known := s.files[info.Name]; known && (file.is(info) || info.Used.IsZero() && file.used.Before(used)) {
		file.used = used
		s.files[info.Name] = file
	}
}

// Forget drops a file that is gone or replaced, or that another check has found otherwise.
func (s *Seen) Forget(name pagefile.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.files[name]; known {
		delete(s.files, name)
		s.order = slices.DeleteFunc(s.order, func(n pagefile.Name) bool { return n == name })
	}
}
