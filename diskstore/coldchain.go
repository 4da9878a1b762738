package diskstore

import (
	"context"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// mixedRound is the number of pages for which findMixed asks the remote tier at first, and in
	// how many more each time, up to mixedRoundMost: most prompts are stored no further than that.
	mixedRound     = 8
	mixedRoundMost = 3 * mixedRound
)

// findMixed is a pageFinder of exact and lossy pages.
func (f *lookup) findMixed(ctx context.Context, names []pagefile.Name, parent pagefile.Key, start int) ([]Ref, error) {
	refs := f.newRefs(parent, start)
	var failed error
	for size := mixedRound; len(names) > 0; size = min(size+mixedRound, mixedRoundMost) {
		round := names[:min(len(names), size)]
		names = names[len(round):]
		found := make([]sighting, len(round))
		for i, name := range round {
			found[i] = f.sight(ctx, name)
		}
		if f.remote != nil && failed == nil {
			failed = f.sightBelow(ctx, round, found)
		}
		for _, at := range found {
			if at.from == nil {
				return refs.refs, failed
			}
			refs.add(at.info, at.from, at.inRAM)
		}
	}
	return refs.refs, failed
}

// sighting is the file of a page that a look-up found; from is nil for none.
type sighting struct {
	info  tier.Info
	from  *level
	inRAM bool // the page is in memory, and no check of its file is due
}

// sight looks for a page in memory and in the local tier, exact and then lossy.
func (f *lookup) sight(ctx context.Context, exact pagefile.Name) sighting {
	for _, name := range []pagefile.Name{exact, pagefile.ColdName(exact)} {
		if ctx.Err() != nil {
			break // nothing is known of the exact page on disk
		}
		if file, fresh := f.ram.Fresh(name); fresh {
			return sighting{file.Info, f.tiers.named(file.Tier), true}
		}
		info, err := tier.Stat(ctx, f.local.tier, name)
		if err == nil && !f.local.checked.Bad.IsBad(info) {
			return sighting{info, f.local, false}
		}
		f.local.noteTierError(err)
	}
	return sighting{}
}

// sightBelow looks in the remote tier for better files than those found: for each page that was not
// found exact, for the exact one, and for each that was not found, for the lossy one.
func (f *lookup) sightBelow(ctx context.Context, names []pagefile.Name, found []sighting) error {
	var ask []pagefile.Name
	var of []int // indexes in found
	for i, name := range names {
		if at := found[i]; at.from == nil {
			ask, of = append(ask, name, pagefile.ColdName(name)), append(of, i, i)
		} else if at.info.Name != name {
			ask, of = append(ask, name), append(of, i)
		}
	}
	infos, err := f.below.Find(ctx, ask, false)
	for j, info := range infos {
		at := &found[of[j]]
		exact := info.Name == names[of[j]]
		if info.Bytes == 0 || f.remote.checked.Bad.IsBad(info) || at.from != nil && !exact {
			continue
		}
		*at = sighting{info, f.remote, false}
	}
	return err
}
