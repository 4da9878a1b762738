package room

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// maxVictims is the number of files that one listing of a tier yields to evict, about 10 MiB
// of names. A collection that needs more lists again.
const maxVictims = 1 << 16

// victims holds the least recently used files of a listing. Their number is bounded by the
// need, not by the length of the listing.
type victims struct {
	need     int64                 // physical bytes
	before   time.Time             // only files last used earlier; zero for any
	most     int                   // files
	obsolete map[pagefile.Key]bool // fingerprints whose files come first, unless used since recent
	recent   time.Time

	files []tier.Info
	bytes int64
	limit time.Time // files used later are not needed; zero for none
	more  bool      // some file was not needed
}

// victims begins a listing of files to evict.
func (c *Collector) victims(want Demand, need int64, before time.Time) *victims {
	recent := want.recent.Add(-recency.TouchEvery) // a page that is being written may still move its chain up
	return &victims{need: need, before: before, most: maxVictims, obsolete: want.obsolete, recent: recent}
}

// used is the last use that orders files: for obsolete ones centuries before all others. A chain in use, which
// the page that needs room may continue, has no obsolete files.
func (v *victims) used(info tier.Info) time.Time {
	if v.obsolete[info.Fingerprint] && info.Used.Before(v.recent) {
		return info.Used.Add(math.MinInt64)
	}
	return info.Used
}

// add adds a file if the file is needed.
func (v *victims) add(info tier.Info) {
	if !v.before.IsZero() && !info.Used.Before(v.before) {
		return
	}
	if !v.limit.IsZero() && v.used(info).After(v.limit) {
		v.more = true
		return
	}
	v.files = append(v.files, info)
	v.bytes += info.Physical
	if len(v.files) >= 2*v.most || len(v.files) >= v.most/64 && v.bytes >= 2*v.need {
		v.prune()
	}
}

// prune drops files that are not needed. Files with equal times stay or are dropped together:
// their order in a chain is not known yet.
func (v *victims) prune() {
	slices.SortFunc(v.files, func(a, b tier.Info) int { return v.used(a).Compare(v.used(b)) })
	var bytes int64
	for i, info := range v.files {
		if i > 0 && (bytes >= v.need || i >= v.most) && v.used(info).After(v.used(v.files[i-1])) {
			v.limit, v.more = v.used(v.files[i-1]), true
			clear(v.files[i:])
			v.files = v.files[:i]
			break
		}
		bytes += info.Physical
	}
	v.bytes = bytes
}

// order returns the files in the order of eviction: every page before the pages that it
// continues. Among files with equal times the headers decide: link returns the place of a full page.
func (v *victims) order(link func(pagefile.Name) recency.Link) []tier.Info {
	v.prune()
	for i := 0; i < len(v.files); {
		end := i + 1
		for end < len(v.files) && v.used(v.files[end]).Equal(v.used(v.files[i])) {
			end++
		}
		if end > i+1 {
			orderTies(v.files[i:end], link)
		}
		i = end
	}
	return v.files
}

// orderTies sorts files of equal times so that the last pages of each chain come first. link returns
// the place of a full page.
func orderTies(infos []tier.Info, link func(pagefile.Name) recency.Link) {
	starts := make(map[pagefile.Name]uint32, len(infos))
	for _, info := range infos {
		starts[info.Name] = math.MaxUint32 // a tail is after any page
		if info.Class == pagefile.ClassPage {
			starts[info.Name] = link(info.Name).Start
		}
	}
	slices.SortFunc(infos, func(a, b tier.Info) int {
		return cmp.Or(cmp.Compare(starts[b.Name], starts[a.Name]), slices.Compare(a.Key[:], b.Key[:]))
	})
}
