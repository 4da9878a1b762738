package diskstore

import (
	"cmp"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// maxRecents is how many files of a listing are kept to be read ahead, about
// 10 MiB of names.
const maxRecents = 1 << 16

// recents keeps the most recently used files of one fingerprint in a listing, as
// many as fit in a number of bytes and not many more, however long the listing
// is. Files order themselves by their times (see recency.go): a conversation's
// follow each other, from its first page on. A nil recents keeps nothing.
type recents struct {
	fingerprint pagefile.Key
	bytes       int64 // of files, to be kept
	most        int   // files

	files []tier.Info
	held  int64 // bytes of files
}

func newRecents(fingerprint pagefile.Key, bytes int64) *recents {
	return &recents{fingerprint: fingerprint, bytes: bytes, most: maxRecents}
}

// add considers a file.
func (r *recents) add(info tier.Info) {
	if r == nil || info.Fingerprint != r.fingerprint {
		return
	}
	r.files = append(r.files, info)
	r.held += info.Bytes
	if len(r.files) >= 2*r.most || len(r.files) >= r.most/64 && r.held/2 >= r.bytes {
		r.prune()
	}
}

// prune sorts the files, the most recent first, and drops those behind the first
// that does not fit: without it they are of no use.
func (r *recents) prune() {
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

// order returns the files, the most recent first.
func (r *recents) order() []tier.Info {
	if r == nil {
		return nil
	}
	r.prune()
	return r.files
}
