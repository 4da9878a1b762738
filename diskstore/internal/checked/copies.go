package checked

import (
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

	// MaxCopies bounds the memory of copies, to about 2 MiB. Beyond MaxCopies all are forgotten.
	MaxCopies = 8192
)

// Copies are the files of the remote tier every byte of which this process has written or
// checked.
type Copies struct {
	now func() time.Time

	mu    sync.Mutex
	files map[pagefile.Name]goodCopy
}

// goodCopy is a file that was good. A file with another length, time or header is another file.
type goodCopy struct {
	bytes int64
	used  time.Time
	crc   uint32 // of the header, which has the checksums of all rows
	since time.Time
}

// NewCopies returns no copies.
func NewCopies(now func() time.Time) *Copies {
	return &Copies{now: now, files: make(map[pagefile.Name]goodCopy)}
}

// Good notes that a file with the given checksum of its header is good.
func (c *Copies) Good(info tier.Info, crc uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.files) >= MaxCopies {
		clear(c.files)
	}
	c.files[info.Name] = goodCopy{bytes: info.Bytes, used: info.Used, crc: crc, since: c.now()}
}

// Knows reports whether a file was found good within CopyLife.
func (c *Copies) Knows(info tier.Info) bool {
	_, good := c.goodHeader(info)
	return good
}

// IsGood reports whether a file was found good within CopyLife, with that header.
func (c *Copies) IsGood(info tier.Info, crc uint32) bool {
	was, good := c.goodHeader(info)
	return good && was == crc
}

// goodHeader returns the checksum of the header with which a file was found good within CopyLife.
func (c *Copies) goodHeader(info tier.Info) (crc uint32, good bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	file, known := c.files[info.Name]
	return file.crc, known && file.is(info) && c.now().Sub(file.since).Abs() < CopyLife
}

func (g goodCopy) is(info tier.Info) bool { return g.bytes == info.Bytes && g.used.Equal(info.Used) }

// Touched notes that this process has given a file, last seen as info, another time.
func (c *Copies) Touched(info tier.Info, used time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if file, known := c.files[info.Name]; known && file.is(info) {
		file.used = used
		c.files[info.Name] = file
	}
}

// Forget drops a file that is gone, was found bad, or could not be read.
func (c *Copies) Forget(name pagefile.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.files, name)
}
