package doctor

import (
	"cmp"
	"fmt"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/telemetry"
)

// spaceChecks look at the room for pages, and at their files.
var spaceChecks = []Check{
	{
		ID: "disk-full", Severity: Error, Title: "A disk has no room for another page",
		Matters: "No page can be stored there.",
		Means:   "Less than a page's room is free. A budget does not help against files of others on the same disk.",
		Remedy:  "df -h {path}; sudo du -xhd1 {point} | sort -h | tail",
		judge: func(s *scene, found func(hit)) {
			s.eachDisk(func(st store, p *place) {
				if p.full() {
					found(s.placeHit(st, p, p.above, p.room(), "The disk of %s is full.", p.title()))
				}
			})
		},
	},
	{
		ID: "budget-over-disk", Severity: Warning, Title: "A budget is larger than the disk allows",
		Matters: "The disk is full before the budget is reached, so pages are evicted early.",
		Means:   "The budget is more than the pages that are stored and the bytes that are free together.",
		Remedy:  "{set}",
		judge: func(s *scene, found func(hit)) {
			s.eachDisk(func(st store, p *place) {
				budget, room := st.budget(p.tier), p.disk.Free+p.stored()
				nobodys := !st.settings.given && p.tier == telemetry.PlaceLocal && len(st.servers) == 0 && s.opt.Root == ""
				if st.Split != nil || nobodys || budget <= room || p.full() {
					return
				}
				const share = .8 // of the room that there is
				gb := max(1, int64(share*float64(room)/env.BytesPerGB))
				found(s.placeHit(st, p, "budget", format.HumanBytes(budget), "The budget of %s is more than its disk has room for.", p.title()).
					also(p.above, p.room()+", "+format.HumanBytes(p.stored())+" in pages").with("{set}", s.by(st).setting(variableOf(p.tier)+"_GB", fmt.Sprint(gb))))
			})
		},
	},
	{
		ID: "quarantine", Severity: Warning, Title: "Damaged files were set aside",
		Matters: "A disk, a cable or memory may be failing.",
		Means:   "A page that fails its check twice is moved to `v1/quarantine` for you to look at, and computed again. One in years is a flipped bit.",
		Remedy:  "{kvtier} check --root {path}; sudo smartctl -a {source}",
		judge: func(s *scene, found func(hit)) {
			s.eachPlace(func(st store, p *place) {
				if p.contents.quarantined == 0 {
					return
				}
				m, _ := machine.MountOf(s.Mounted, p.above)
				found(s.placeHit(st, p, p.path+"/v1/quarantine", plural(p.contents.quarantined, "file"), "%s has damaged files in quarantine.", p.title()).
					with("{source}", machine.Quote(cmp.Or(m.Source, "/dev/sda"))))
			})
		},
	},
}

// fullBytes is the size of a page of a large model.
const fullBytes = 256 << 20

// eachDisk calls fn for each directory whose filesystem is known.
func (s *scene) eachDisk(fn func(st store, p *place)) {
	s.eachPlace(func(st store, p *place) {
		if p.diskErr == nil && p.disk.Total > 0 {
			fn(st, p)
		}
	})
}

func (p *place) room() string {
	return fmt.Sprintf("%s free of %s", format.HumanBytes(p.disk.Free), format.HumanBytes(p.disk.Total))
}

// full reports a disk without room for a page.
func (p *place) full() bool { return p.disk.Free < min(fullBytes, p.disk.Total/10) }

// stored are the bytes of pages below a directory, as far as they were counted.
func (p *place) stored() int64 {
	if p.contents.ledger == nil {
		return 0
	}
	return max(0, p.contents.ledger.Bytes)
}
