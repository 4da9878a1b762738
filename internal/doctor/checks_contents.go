package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/kvtier/kvtier/internal/tierenv"
)

// contentChecks look at the files below the directories of pages.
var contentChecks = []Check{
	{
		ID: "quarantine", Severity: Warning, Title: "Damaged files were set aside",
		Matters: "A disk, a cable or memory may be failing.",
		Means:   "A page that fails its check twice is moved to `v1/quarantine` for a person to look at, and computed again. One in years is a flipped bit.",
		Remedy:  "{kvtier} check --root {path}; sudo smartctl -a {source}", judge: judgeQuarantine,
	},
	{
		ID: "two-builds", Severity: Warning, Title: "Two builds of the engine use one directory",
		Matters: "Each computes and stores the same prompts for itself.",
		Means:   "Pages of the same weights by two builds were used within a day. Pages are only shared by builds that are the same to the byte.",
		Remedy:  "{kvtier} ls --json --root {path}  # then install one build, or set OLLAMA_KV_INSTANCE_ID for each server", judge: judgeTwoBuilds,
	},
	{
		ID: "other-version-pages", Severity: Note, Title: "Pages of another build wait to be removed",
		Matters: "They take space until a day after their last use, in the remote directory 30 days.",
		Means:   "Another version of Ollama or of kvtier stored them. They stay for a while in case that it comes back.",
		Remedy:  "{kvtier} gc --older-than 1d --root {path}", judge: judgeOtherVersion,
	},
	{
		ID: "unused-instance", Severity: Note, Title: "No server has the id of a directory",
		Matters: "Its pages take space, and no server reads them.",
		Means:   "A server with `OLLAMA_KV_INSTANCE_ID` keeps its pages in `instances/ID`. No process holds the lock of this one, and it was not used for a day. A lock left behind harms nobody.",
		Remedy:  "{kvtier} stat --root {instance}; {as}rm -r {instance}", judge: judgeInstances,
	},
}

// recentUse is the age up to which pages count as in use.
const recentUse = 24 * time.Hour

func judgeQuarantine(s *scene) (hits []hit) {
	s.eachPlace(func(st store, p *place) {
		if p.contents.quarantined == 0 {
			return
		}
		m, _ := mountOf(s.mounts, p.above)
		h := s.placeHit(st, p, p.path+"/v1/quarantine", plural(p.contents.quarantined, "file"), "%s has damaged files in quarantine.", upperFirst(p.title()))
		h.values = append(h.values, "{source}", quote(cmp.Or(m.source, "/dev/sda")))
		hits = append(hits, h)
	})
	return hits
}

// versions are the builds of one model on one kind of machine.
type versions []build

// versionsOf groups the builds that only differ in the engine.
func versionsOf(builds []build) (all []versions) {
	same := func(a, b build) bool {
		for _, key := range []string{tierenv.KeyWeights, tierenv.KeyAdapters, tierenv.KeyNumerics, tierenv.KeyNamespace, tierenv.KeyCacheType, tierenv.KeyPageTokens} {
			if a.identity[key] != b.identity[key] {
				return false
			}
		}
		return true
	}
	for _, b := range builds {
		at := slices.IndexFunc(all, func(v versions) bool { return same(v[0], b) })
		if at < 0 {
			all = append(all, versions{b})
			continue
		}
		all[at] = append(all[at], b)
	}
	return slices.DeleteFunc(all, func(v versions) bool { return len(v) < 2 })
}

// used counts the builds that were used lately.
func (v versions) used(now time.Time) (n int) {
	for _, b := range v {
		if now.Sub(b.used) < recentUse {
			n++
		}
	}
	return n
}

func (v versions) evidence() (all []Evidence) {
	for _, b := range v[:min(len(v), 4)] {
		engine := b.identity[tierenv.KeyEngine]
		all = append(all, Evidence{"fingerprint " + b.fingerprint[:12], fmt.Sprintf("engine %s, last used %s", engine[:min(len(engine), 12)], b.used.UTC().Format(time.RFC3339))})
	}
	return all
}

// weights names the model of builds.
func (v versions) weights() string {
	w := v[0].identity[tierenv.KeyWeights]
	return w[:min(len(w), 12)]
}

func (s *scene) eachVersions(fn func(st store, p *place, v versions)) {
	s.eachPlace(func(st store, p *place) {
		for _, v := range versionsOf(p.contents.builds) {
			fn(st, p, v)
		}
	})
}

func judgeTwoBuilds(s *scene) (hits []hit) {
	s.eachVersions(func(st store, p *place, v versions) {
		if v.used(s.now) > 1 {
			hits = append(hits, hit{says: fmt.Sprintf("Several builds of the engine store pages of the weights %s in %s.", v.weights(), p.title()), evidence: v.evidence(), values: s.values(st, p)})
		}
	})
	return hits
}

func judgeOtherVersion(s *scene) (hits []hit) {
	s.eachVersions(func(st store, p *place, v versions) {
		if v.used(s.now) <= 1 {
			hits = append(hits, hit{says: fmt.Sprintf("%s has pages of the weights %s by another build.", upperFirst(p.title()), v.weights()), evidence: v.evidence(), values: s.values(st, p)})
		}
	})
	return hits
}

func judgeInstances(s *scene) (hits []hit) {
	s.eachPlace(func(st store, p *place) {
		for _, i := range p.contents.instances {
			mine := slices.ContainsFunc(s.servers, func(o server) bool { return value(o.variables(), instanceVar) == i.id })
			if i.held || mine || s.now.Sub(i.used) < recentUse {
				continue
			}
			h := s.placeHit(st, p, i.path, "last used "+i.used.UTC().Format(time.RFC3339), "No server has the id %s, and its directory is still there.", i.id)
			h.values = append(h.values, "{instance}", quote(i.path))
			hits = append(hits, h)
		}
	})
	return hits
}
