package torture

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// pageFile is a file of a page as the server wrote it.
type pageFile struct {
	path    string
	content []byte
}

// Offsets in a page file; see docs/page-format.md.
const (
	startAt  = 112
	countAt  = 120
	sectsAt  = 128
	headAt   = 132
	rowsAt   = 144
	tokensAt = 152

	sectionBytes = 40
)

func (f pageFile) u32(at int) int { return int(binary.LittleEndian.Uint32(f.content[at:])) }

// isKvp is the ending of the names of pages.
const isKvp = ".kvp"

// quarantine is the folder of files that failed their check, below a root.
const quarantine = "v1/quarantine"

// fresh returns the pages that were stored since the last call, in order, tails last.
func (r *rig) fresh() []pageFile {
	r.t.Helper()
	var found []pageFile
	err := filepath.WalkDir(r.root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // it was removed meanwhile
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == filepath.Base(quarantine):
			return filepath.SkipDir
		case !strings.HasSuffix(path, isKvp) || r.known[path]:
			return nil
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		r.known[path] = true
		found = append(found, pageFile{path, content})
		return err
	})
	require.NoError(r.t, err)
	slices.SortFunc(found, func(a, b pageFile) int {
		return cmp.Or(cmp.Compare(a.u32(startAt), b.u32(startAt)), cmp.Compare(len(a.content), len(b.content)))
	})
	return found
}

// put puts content in a page's place, as a new file.
func (r *rig) put(path string, content []byte) {
	r.t.Helper()
	require.NoError(r.t, put(filepath.Dir(r.root), path, content))
}

// put needs a folder on the same filesystem.
func put(folder, path string, content []byte) error {
	f, err := os.CreateTemp(folder, "page-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close(), os.Rename(f.Name(), path))
}

// heal puts all pages of conversations back as they were written, and empties quarantine.
func (r *rig) heal(chats ...*chat) {
	r.t.Helper()
	for _, c := range chats {
		for _, p := range c.pages {
			r.put(p.path, p.content)
		}
	}
	r.forgive()
}

// forgive empties quarantine, and returns the number of pages that were in it.
func (r *rig) forgive() int {
	r.t.Helper()
	aside, err := filepath.Glob(filepath.Join(r.root, quarantine, "*"))
	require.NoError(r.t, err)
	n := 0
	for _, path := range aside {
		if strings.HasSuffix(path, isKvp) && os.Remove(path) == nil {
			n++
		}
	}
	return n
}

// fault changes a stored page. others are the pages of all conversations.
type fault struct {
	name  string
	apply func(rng *rand.Rand, p pageFile, others []pageFile, folder string) error
}

// another is the content of another page.
func another(rng *rand.Rand, p pageFile, others []pageFile) []byte {
	for {
		if o := others[rng.IntN(len(others))]; o.path != p.path {
			return o.content
		}
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealed is a page with right checksums after a change of its bytes.
func sealed(content []byte, change func(f pageFile)) []byte {
	f := pageFile{content: slices.Clone(content)}
	change(f)
	head, end := f.u32(headAt), len(f.content)-pagefile.FooterBytes
	table := head - 4 - sectionBytes*f.u32(sectsAt)
	for at := table; at < head-4; at += sectionBytes {
		from := binary.LittleEndian.Uint64(f.content[at+12:])
		size := binary.LittleEndian.Uint64(f.content[at+20:])
		binary.LittleEndian.PutUint32(f.content[at+36:], crc32.Checksum(f.content[from:from+size], castagnoli))
	}
	binary.LittleEndian.PutUint32(f.content[head-4:], crc32.Checksum(f.content[:head-4], castagnoli))
	copy(f.content[end+8:end+12], f.content[head-4:head])
	binary.LittleEndian.PutUint32(f.content[end+28:], crc32.Checksum(f.content[end:end+28], castagnoli))
	return f.content
}

// otherTokens gives a page the tokens of another text and keeps its key: two texts with one hash.
func otherTokens(f pageFile) {
	for at := tokensAt; at < tokensAt+4*f.u32(countAt); at += 4 {
		binary.LittleEndian.PutUint32(f.content[at:], binary.LittleEndian.Uint32(f.content[at:])^1)
	}
}

// otherRows gives a page wrong rows.
func otherRows(f pageFile) {
	for at := f.u32(rowsAt); at < len(f.content)-pagefile.FooterBytes; at += pagefile.PageAlign {
		for i := range 64 {
			f.content[at+i] ^= 0x11
		}
	}
}

// storedFaults are the faults of files that a server finds.
var storedFaults = []fault{
	{"a flipped bit", func(rng *rand.Rand, p pageFile, _ []pageFile, folder string) error {
		b := slices.Clone(p.content)
		b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		return put(folder, p.path, b)
	}},
	{"truncated", func(rng *rand.Rand, p pageFile, _ []pageFile, folder string) error {
		return put(folder, p.path, p.content[:rng.IntN(len(p.content))])
	}},
	{"empty", func(_ *rand.Rand, p pageFile, _ []pageFile, folder string) error {
		return put(folder, p.path, nil)
	}},
	{"zeros", func(_ *rand.Rand, p pageFile, _ []pageFile, folder string) error {
		return put(folder, p.path, make([]byte, len(p.content)))
	}},
	{"half written", func(rng *rand.Rand, p pageFile, _ []pageFile, folder string) error {
		b := make([]byte, len(p.content))
		copy(b[:rng.IntN(len(b)-pagefile.FooterBytes)], p.content)
		return put(folder, p.path, b)
	}},
	{"missing", func(_ *rand.Rand, p pageFile, _ []pageFile, _ string) error {
		return os.Remove(p.path)
	}},
	{"another page's", func(rng *rand.Rand, p pageFile, others []pageFile, folder string) error {
		return put(folder, p.path, another(rng, p, others))
	}},
	{"a colliding hash", func(_ *rand.Rand, p pageFile, _ []pageFile, folder string) error {
		return put(folder, p.path, sealed(p.content, otherTokens))
	}},
	{"overwritten in place", func(rng *rand.Rand, p pageFile, others []pageFile, _ string) error {
		return os.WriteFile(p.path, another(rng, p, others), 0o600)
	}},
}

// readFaults are those of files that are being read.
var readFaults = []fault{
	{"evicted while it is read", func(_ *rand.Rand, p pageFile, _ []pageFile, _ string) error {
		return os.Remove(p.path)
	}},
	{"truncated while it is read", func(rng *rand.Rand, p pageFile, _ []pageFile, _ string) error {
		return os.Truncate(p.path, rng.Int64N(int64(len(p.content))))
	}},
	{"overwritten while it is read", func(rng *rand.Rand, p pageFile, others []pageFile, _ string) error {
		return os.WriteFile(p.path, another(rng, p, others), 0o600)
	}},
	{"replaced while it is read", func(rng *rand.Rand, p pageFile, others []pageFile, folder string) error {
		return put(folder, p.path, another(rng, p, others))
	}},
}

// lastSection is a page whose last section is damaged.
func lastSection(p pageFile) []byte {
	b := slices.Clone(p.content)
	b[len(b)-pagefile.FooterBytes-pagefile.PageAlign]++
	return b
}
