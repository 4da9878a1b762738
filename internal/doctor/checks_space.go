package doctor

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvtier/kvtier/internal/env"
)

// spaceChecks look at space and speed.
var spaceChecks = []Check{
	{
		ID: "disk-full", Severity: Error, Title: "A disk is full",
		Matters: "No page can be stored there.",
		Means:   "Less than a page's room is free. A budget does not help against files of others on the same disk.",
		Remedy:  "df -h {path}; sudo du -xhd1 {point} | sort -h | tail", judge: judgeFull,
	},
	{
		ID: "disk-nearly-full", Severity: Warning, Title: "A disk is nearly full",
		Matters: "Pages are evicted although the budget has room, or soon cannot be stored.",
		Means:   "Less than 3 % of the disk is free. A budget of 0 leaves 5 % free.",
		Remedy:  "{kvtier} gc --older-than 30d --root {path}; df -h {path}", judge: judgeNearlyFull,
	},
	{
		ID: "inodes", Severity: Error, Title: "A filesystem has no room for more files",
		Matters: "No page can be stored there, although bytes are free.",
		Means:   "Each page takes up to three inodes: its file, an empty file, and a directory for the text that follows. A filesystem such as ext4 has a fixed number of inodes.",
		Remedy:  "df -i {path}; {kvtier} gc --older-than 30d --root {path}", judge: judgeInodes,
	},
	{
		ID: "budget-over-disk", Severity: Warning, Title: "A budget is larger than the disk allows",
		Matters: "The disk is full before the budget is reached, and others lack the space.",
		Means:   "The budget is more than the pages that are stored and the bytes that are free together.",
		Remedy:  "{set}", Sets: "OLLAMA_KV_TIER_LOCAL_GB=GB", judge: judgeBudget,
	},
	{
		ID: "budget-zero-shared", Severity: Warning, Title: "A budget of 0 on a disk with other data",
		Matters: "Pages fill the disk up to 95 %, so other programs find little room.",
		Means:   "`0` means no budget: choose it only where nothing else needs the space.",
		Remedy:  "{set}", Sets: "OLLAMA_KV_TIER_LOCAL_GB=GB", judge: judgeShared,
	},
	{
		ID: "slow-writes", Severity: Warning, Title: "A disk is slow to write",
		Matters: "Pages wait in memory, and some are not stored when a model is unloaded.",
		Means:   "A file of 32 MB was written at less than 60 MB/s. `kvtier bench` measures for longer, also reading.",
		Remedy:  "{kvtier} bench --root {path}", judge: judgeSlowWrites,
	},
	{
		ID: "slow-sync", Severity: Warning, Title: "A disk takes long to make a file durable",
		Matters: "Each page is made durable before it counts as stored.",
		Means:   "`fsync` of 32 MB took more than a second: a disk without a cache, a busy one, or a share over a slow network.",
		Remedy:  "{kvtier} bench --root {path}; iostat -x 1 5", judge: judgeSlowSync,
	},
	{
		ID: "write-cap", Severity: Warning, Title: "The limit of bytes written per day is reached",
		Matters: "Pages are not stored before midnight (UTC).",
		Means:   "`OLLAMA_KV_TIER_WRITE_GB_PER_DAY` spares the disk. `kvtier stat` shows the bytes of each day.",
		Remedy:  "{kvtier} stat --root {path}  # then, for more: {set}", Sets: "OLLAMA_KV_TIER_WRITE_GB_PER_DAY=GB", judge: judgeWriteCap,
	},
}

const (
	fullBytes = 256 << 20 // a page of a large model
	slowWrite = 60e6      // bytes per second
	slowSync  = time.Second
)

// shareOf is a part of a whole, 0 of nothing.
func shareOf(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// eachDisk calls fn for each directory whose filesystem is known.
func (s *scene) eachDisk(fn func(st store, p *place)) {
	s.eachPlace(func(st store, p *place) {
		if p.diskErr == nil && p.disk.Total > 0 {
			fn(st, p)
		}
	})
}

func (d Disk) text() string {
	return fmt.Sprintf("%s free of %s", bytesText(d.Free), bytesText(d.Total))
}

// full reports a disk without room for a page.
func (d Disk) full() bool { return d.Free < min(fullBytes, d.Total/10) }

func judgeFull(s *scene) (hits []hit) {
	s.eachDisk(func(st store, p *place) {
		if p.disk.full() {
			hits = append(hits, s.placeHit(st, p, p.above, p.disk.text(), "The disk of %s is full.", p.title()))
		}
	})
	return hits
}

func judgeNearlyFull(s *scene) (hits []hit) {
	const least = .03
	s.eachDisk(func(st store, p *place) {
		if !p.disk.full() && shareOf(p.disk.Free, p.disk.Total) < least {
			hits = append(hits, s.placeHit(st, p, p.above, p.disk.text(), "The disk of %s is nearly full.", p.title()))
		}
	})
	return hits
}

func judgeInodes(s *scene) (hits []hit) {
	s.eachDisk(func(st store, p *place) {
		if p.disk.Inodes > 0 && p.disk.InodesFree < p.disk.Inodes/100 {
			hits = append(hits, s.placeHit(st, p, p.above, fmt.Sprintf("%d of %d inodes free", p.disk.InodesFree, p.disk.Inodes), "The filesystem of %s has no room for more files.", p.title()))
		}
	})
	return hits
}

// stored are the bytes of pages below a directory, as far as they were counted.
func (p *place) stored() int64 {
	if p.contents.ledger == nil {
		return 0
	}
	return max(0, p.contents.ledger.Bytes)
}

// budgetValues adds the command that sets a budget to the values of a directory's remedies.
func (s *scene) budgetValues(st store, p *place) []string {
	name := localGBVar
	if p.tier == remoteTier {
		name = remoteGBVar
	}
	const share = .8 // of the room that there is
	gb := max(1, int64(share*float64(p.disk.Free+p.stored())/env.BytesPerGB))
	return append([]string{"{set}", s.by(st).setting(name, fmt.Sprint(gb))}, s.values(st, p)...)
}

func judgeBudget(s *scene) (hits []hit) {
	s.eachDisk(func(st store, p *place) {
		if st.split {
			return
		}
		budget, room := st.budget(p.tier), p.disk.Free+p.stored()
		if !st.settings.given && p.tier == localTier && len(st.servers) == 0 && s.opt.Root == "" || budget <= room || budget == 0 || p.disk.full() {
			return
		}
		h := s.placeHit(st, p, "budget", bytesText(budget), "The budget of %s is more than its disk has room for.", p.title())
		h.evidence = append(h.evidence, Evidence{p.above, p.disk.text() + ", " + bytesText(p.stored()) + " in pages"})
		h.values = s.budgetValues(st, p)
		hits = append(hits, h)
	})
	return hits
}

func judgeShared(s *scene) (hits []hit) {
	const others = .1 // of the disk
	s.eachDisk(func(st store, p *place) {
		if st.split || st.budget(p.tier) != 0 || p.tier == localTier && s.opt.Root != "" && s.opt.LocalGB == "" || p.tier == remoteTier && len(st.servers) == 0 {
			return
		}
		used := p.disk.Total - p.disk.Free - p.stored()
		m, _ := mountOf(s.mounts, p.above)
		system := slices.Contains([]string{"/", "/home", "/var", "/usr"}, m.point)
		if p.tier == remoteTier && p.contents.ledger == nil || !system && shareOf(used, p.disk.Total) < others {
			return
		}
		h := s.placeHit(st, p, "mount "+m.point, fmt.Sprintf("%s of other data, %s", bytesText(max(0, used)), p.disk.text()), "%s has a budget of 0, and its disk holds other data.", upperFirst(p.title()))
		h.values = s.budgetValues(st, p)
		hits = append(hits, h)
	})
	return hits
}

// eachProbe calls fn for each directory whose disk was measured.
func (s *scene) eachProbe(fn func(st store, p *place)) {
	s.eachPlace(func(st store, p *place) {
		if p.probed && p.probeErr == nil && p.probe.Bytes > 0 {
			fn(st, p)
		}
	})
}

func judgeSlowWrites(s *scene) (hits []hit) {
	s.eachProbe(func(st store, p *place) {
		rate := float64(p.probe.Bytes) / max((p.probe.Write+p.probe.Sync).Seconds(), 1e-9)
		if rate < slowWrite && p.probe.Sync <= slowSync {
			hits = append(hits, s.placeHit(st, p, p.path, fmt.Sprintf("%s/s, durable", bytesText(int64(rate))), "%s is slow to write.", upperFirst(p.title())))
		}
	})
	return hits
}

func judgeSlowSync(s *scene) (hits []hit) {
	s.eachProbe(func(st store, p *place) {
		if p.probe.Sync > slowSync {
			hits = append(hits, s.placeHit(st, p, p.path, fmt.Sprintf("%v for %s", p.probe.Sync.Round(time.Millisecond), bytesText(p.probe.Bytes)), "%s takes long to make a file durable.", upperFirst(p.title())))
		}
	})
	return hits
}

func judgeWriteCap(s *scene) (hits []hit) {
	for _, st := range s.stores {
		p := st.local
		if p == nil || st.writes == 0 || p.contents.ledger == nil {
			continue
		}
		if written := p.contents.ledger.Written[s.now.UTC().Format(time.DateOnly)]; written >= st.writes {
			h := s.placeHit(st, p, writeVar, fmt.Sprintf("%s written today of %s", bytesText(written), bytesText(st.writes)), "%s has taken as many bytes as it may in a day.", upperFirst(p.title()))
			h.values = append([]string{"{set}", s.by(st).setting(writeVar, fmt.Sprint(2*st.writes/env.BytesPerGB))}, h.values...)
			hits = append(hits, h)
		}
	}
	return hits
}
