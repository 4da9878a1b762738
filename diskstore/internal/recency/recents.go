package recency

import (
	"cmp"
	"math"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// maxRecents is the number of files of a listing that are kept to be read ahead, about 10 MiB of names.
const maxRecents = 1 << 16

// Recents holds the most recently used files of some fingerprints in a listing. The number of files is
// bounded by their bytes, not by the length of the listing. Times order the files: a conversation's files are
// consecutive, from its first page on. A nil Recents holds nothing.
type Recents struct {
	fingerprints []pagefile.Key
	bytes        int64 // of files to keep
	most         int   // files

	files []tier.Info
	held  int64 // bytes of files
}

// ToRead returns the recents of some fingerprints that together have at most some bytes.
func ToRead(bytes int64, fingerprints ...pagefile.Key) *Recents {
	return &Recents{fingerprints: fingerprints, bytes: bytes, most: maxRecents}
}

// Latest returns the latest recents of a fingerprint, at most `most` of them.
func Latest(fingerprint pagefile.Key, most int) *Recents {
	r := ToRead(math.MaxInt64, fingerprint)
	r.most = most
	return r
}

// Add adds a file if the file is recent enough.
func (r *Recents) Add(info tier.Info) {
	if r == nil || !slices.Contains(r.fingerprints, info.Fingerprint) {
		return
	}
	r.files = append(r.files, info)
	r.held += info.Bytes
	if len(r.files) >= 2*r.most || len(r.files) >= r.most/64 && r.held/2 >= r.bytes {
		r.prune()
	}
}

// prune sorts the files, the most recent first, and drops the first file that does not fit and
// all files after it: later files are useless without that one.
func (r *Recents) prune() {
	slices.SortFunc(r.files, func(a, b tier.Info) int {
		return cmp.Or(b.Used.Compare(a.Used), slices.Compare(a.Key[:], b.Key[:]))
	})
	r.held = 0
	for i, info := range r.files {
		if i >= r.most || r.held+info.Bytes > r.bytes {
			clear(r.files[i:])
			r.files = r.files[:i]
			return
		}
		r.held += info.Bytes
	}
}

// Order returns the files, the most recent first.
func (r *Recents) Order() []tier.Info {
	if r == nil {
		return nil
	}
	r.prune()
	return r.files
}
