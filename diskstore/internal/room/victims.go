package room

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/reuse"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// maxVictims is the number of files that one listing of a tier yields to evict, about 10 MiB
// of names. A collection that needs more lists again.
const maxVictims = 1 << 16

// victims holds the files of a listing that are worth least, and of those worth the same the least recently used
// ones. Their number is bounded by the need, not by the length of the listing.
type victims struct {
	need     int64                 // physical bytes
	before   time.Time             // only files last used earlier; zero for any
	trim     bool                  // later ones take part, and stay
	most     int                   // files
	obsolete map[pagefile.Key]bool // fingerprints whose files come first, unless used since recent
	recent   time.Time
	worths   *reuse.Worths
	now      time.Time

	files []ranked
	bytes int64
	limit *ranked // files of a higher rank are not needed; nil for none
	more  bool    // some file was not needed that may leave
}

// victims begins a listing of files to evict. A trim takes only files that would leave anyway when room is
// wanted: it takes no page in the place of a more recent one that is worth less.
func (c *Collector) victims(want Demand, need int64, before time.Time) *victims {
	recent := want.recent.Add(-recency.TouchEvery) // a page that is being written may still move its chain up
	return &victims{
		need: need, before: before, trim: before.Equal(want.recent), most: maxVictims,
		obsolete: want.obsolete, recent: recent, worths: want.worths, now: c.opt.Now(),
	}
}

// ranked is a file with its worth. Files that are worth less leave first, and of those worth the same the ones
// that were used earlier.
type ranked struct {
	tier.Info
	worth float64
}

func (r *ranked) compare(o *ranked) int {
	if r.worth != o.worth { // no worth is NaN
		return cmp.Compare(r.worth, o.worth)
	}
	return r.Used.Compare(o.Used)
}

// worth is that of a file. Obsolete files are worth less than nothing. A chain in use, which the page that needs
// room may continue, has no obsolete files.
func (v *victims) worth(info *tier.Info) float64 {
	if len(v.obsolete) > 0 && v.obsolete[info.Fingerprint] && info.Used.Before(v.recent) {
		return -1
	}
	if v.worths == nil {
		return 0
	}
	return v.worths.Of(recency.Uses(info.Used), v.now.Sub(info.Used))
}

func (v *victims) spares(info tier.Info) bool {
	return !v.before.IsZero() && !info.Used.Before(v.before)
}

// add adds a file if the file is needed.
func (v *victims) add(info tier.Info) {
	if !v.trim && v.spares(info) {
		return
	}
	file := ranked{info, v.worth(&info)}
	if v.limit != nil && file.compare(v.limit) > 0 {
		v.more = v.more || !v.spares(info)
		return
	}
	v.files = append(v.files, file)
	v.bytes += info.Physical
	if len(v.files) >= 2*v.most || len(v.files) >= v.most/64 && v.bytes >= 2*v.need {
		v.prune()
	}
}

// prune drops files that are not needed. Files of equal rank stay or are dropped together: their order in a
// chain is not known yet.
func (v *victims) prune() {
	slices.SortFunc(v.files, func(a, b ranked) int { return a.compare(&b) })
	var bytes int64
	for i := range v.files {
		if i > 0 && (bytes >= v.need || i >= v.most) {
			if last := v.files[i-1]; v.files[i].compare(&last) > 0 {
				v.limit = &last
				v.more = v.more || slices.ContainsFunc(v.files[i:], func(f ranked) bool { return !v.spares(f.Info) })
				clear(v.files[i:])
				v.files = v.files[:i]
				break
			}
		}
		bytes += v.files[i].Physical
	}
	v.bytes = bytes
}

// order returns the files in the order of eviction: every page before the pages that it
// continues. Among files of equal rank the headers decide: link returns the place of a full page.
func (v *victims) order(link func(pagefile.Name) recency.Link) []tier.Info {
	v.prune()
	if v.trim {
		v.files = slices.DeleteFunc(v.files, func(f ranked) bool { return v.spares(f.Info) })
	}
	infos := make([]tier.Info, len(v.files))
	for i := range v.files {
		infos[i] = v.files[i].Info
	}
	for i := 0; i < len(infos); {
		end := i + 1
		for end < len(infos) && v.files[end].compare(&v.files[i]) == 0 {
			end++
		}
		if end > i+1 {
			orderTies(infos[i:end], link)
		}
		i = end
	}
	return infos
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
