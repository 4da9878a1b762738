package doctor

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/telemetry"
)

// Names of tiers.
const (
	localTier  = "local"
	remoteTier = "remote"
)

// place is the directory of a tier.
type place struct {
	tier, path string
	noAnswer   bool
	missing    bool
	denied     bool // this user may not look
	file       machine.File
	above      string // the directory itself, or the nearest one above that exists
	disk       machine.Disk
	diskErr    error
	contents   contents
	probed     bool
	probeErr   error
}

// anybody is the owner of a directory that was named by the person who looks.
const anybody = -1

// lookAt looks at a directory, and writes an empty file to it. Where another user named the directory, nothing is
// written unless the directory is that user's: root must not write where somebody else points to.
func lookAt(e Environment, tier, path string, owner int) place {
	p := place{tier: tier, path: filepath.Clean(path)}
	var err error
	p.file, err = e.Stat(p.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.missing = true
	case err != nil:
		p.denied = true
	}
	p.above = p.path
	for p.missing || p.denied {
		if _, err := e.Stat(p.above); err == nil || p.above == filepath.Dir(p.above) {
			break
		}
		p.above = filepath.Dir(p.above)
	}
	p.disk, p.diskErr = e.Disk(p.above)
	if p.missing || p.denied || !p.file.Mode.IsDir() {
		return p
	}
	p.contents = contentsOf(e, p.path)
	if p.denied = p.contents.denied; p.denied {
		return p
	}
	if owner != anybody && p.file.UID != owner {
		return p
	}
	p.probed = true
	p.probeErr = e.Probe(p.path)
	return p
}

// store is the tiers of one server, or of several with the same directories.
type store struct {
	settings
	servers       []int // indices into the scene's servers
	local, remote *place
	state         *telemetry.State // nil if it is not known
}

// localPath is the local directory of a store, or that of a tier alone.
func (s store) localPath(p *place) string {
	if s.local != nil {
		return s.local.path
	}
	return p.path
}

// places returns the tiers that there are.
func (s store) places() []*place {
	var all []*place
	for _, p := range []*place{s.local, s.remote} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// contents are the files below a root.
type contents struct {
	denied      bool
	foreign     []owned // files of other users than the root's
	quarantined int
	ledger      *ledger.Ledger // nil if there is none
}

// owned is a file and its owner.
type owned struct {
	path string
	uid  int
}

// Bounds of a look at a root, which may have millions of files.
const (
	statsMax   = 4096 // files that are described
	foreignMax = 8
)

// looker counts the files that it describes.
type looker struct {
	Environment
	left int
}

func (l *looker) stat(path string) (machine.File, bool) {
	if l.left == 0 {
		return machine.File{}, false
	}
	l.left--
	f, err := l.Stat(path)
	return f, err == nil
}

// contentsOf looks at the directories of a root, and at some of its files.
func contentsOf(e Environment, root string) (c contents) {
	l := &looker{e, statsMax}
	top, ok := l.stat(root)
	_, err := e.List(root, 1)
	if c.denied = errors.Is(err, fs.ErrPermission); c.denied || !ok {
		return c
	}
	v1 := filepath.Join(root, "v1")
	if f, ok := c.own(l, v1, top.UID); !ok || !f.Mode.IsDir() {
		return c // a link could lead anywhere
	}
	c.ledger = readLedger(e, filepath.Join(v1, "usage.json"))
	quarantine, _ := e.List(filepath.Join(v1, "quarantine"), machine.EntriesMax)
	c.quarantined = len(quarantine)
	names, _ := e.List(v1, machine.EntriesMax)
	for _, name := range names {
		dir := filepath.Join(v1, name)
		f, ok := c.own(l, dir, top.UID)
		if _, err := pagefile.ParseKey(name); err != nil || !ok || !f.Mode.IsDir() {
			continue
		}
		c.ownPages(l, dir, top.UID)
	}
	return c
}

// own notes a file that belongs to another user than the root.
func (c *contents) own(l *looker, path string, uid int) (machine.File, bool) {
	f, ok := l.stat(path)
	if ok && f.UID >= 0 && uid >= 0 && f.UID != uid && len(c.foreign) < foreignMax {
		c.foreign = append(c.foreign, owned{path, f.UID})
	}
	return f, ok
}

// ownPages looks at the owners of a fingerprint's directories and of some files.
func (c *contents) ownPages(l *looker, dir string, uid int) {
	shards, _ := l.List(dir, machine.EntriesMax)
	const filesMax = 4 // of each shard
	for _, shard := range shards {
		f, ok := c.own(l, filepath.Join(dir, shard), uid)
		if !ok || !f.Mode.IsDir() || len(shard) != 2 {
			continue
		}
		files, _ := l.List(filepath.Join(dir, shard), filesMax)
		for _, file := range files {
			c.own(l, filepath.Join(dir, shard, file), uid)
		}
	}
}

// readLedger reads the first line of a ledger, without a proof of its content: nothing is
// decided by it.
func readLedger(e Environment, path string) *ledger.Ledger {
	text, err := e.Read(path, machine.TextMax)
	l := new(ledger.Ledger)
	if err != nil || json.NewDecoder(strings.NewReader(string(text))).Decode(l) != nil {
		return nil
	}
	return l
}
