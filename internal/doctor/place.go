package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/telemetry"
)

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
	p.probeErr = e.Probe(p.path, p.file.UID)
	return p
}

// store is the tiers of one server, or of several with the same directories.
type store struct {
	settings
	servers []int            // indices into the scene's servers
	engine  *engine          // nil for none
	places  []*place         // of the tiers that there are, the local one first
	state   *telemetry.State // of the local directory; nil if it is not known
}

type contents struct {
	denied      bool
	quarantined int
	ledger      *ledger.Ledger // nil if there is none
}

func contentsOf(e Environment, root string) (c contents) {
	if _, err := e.List(root, 1); errors.Is(err, fs.ErrPermission) {
		return contents{denied: true}
	}
	v1 := filepath.Join(root, "v1")
	if f, err := e.Stat(v1); err != nil || !f.Mode.IsDir() {
		return c // a link could lead anywhere
	}
	// The first line of a ledger, without a proof of its content: nothing is decided by it.
	if text, err := e.Read(filepath.Join(v1, "usage.json"), machine.TextMax); err == nil {
		l := new(ledger.Ledger)
		if json.NewDecoder(bytes.NewReader(text)).Decode(l) == nil {
			c.ledger = l
		}
	}
	quarantine, _ := e.List(filepath.Join(v1, "quarantine"), machine.EntriesMax)
	c.quarantined = len(quarantine)
	return c
}
