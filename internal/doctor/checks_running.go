package doctor

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/show"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

// runningChecks look at the counters of servers that run, or have run.
var runningChecks = []Check{
	{
		ID: "not-stored", Severity: Error, Title: "Conversations of a loaded model are not stored",
		Matters: "Their prompts are computed again after an unload or another conversation.",
		Means:   "The server reports the cause, which `kvtier ps` and `kvtier why` show, too.",
		Remedy:  "{kvtier} ps --root {path}",
		judge: func(s *scene, found func(hit)) {
			s.unstored(found, func(cause telemetry.Obstacle) bool {
				return cause != telemetry.ObstacleEmbedding && cause != telemetry.ObstacleModel // they need no remedy
			})
		},
	},
	{
		ID: "model-unsupported", Severity: Note, Title: "A loaded model is not tiered",
		Matters: "It runs as in a stock Ollama.",
		Means:   "Architectures whose caches are known to hold all of their state are tiered; docs/models.md lists them.",
		Remedy:  "{kvtier} ps --root {path}",
		judge: func(s *scene, found func(hit)) {
			s.unstored(found, func(cause telemetry.Obstacle) bool { return cause == telemetry.ObstacleModel })
		},
	},
	{
		ID: "breaker-open", Severity: Error, Title: "A tier is left alone after failures",
		Matters: "Its pages are not read, and none is stored there.",
		Means:   "Writing fails, or several operations in a row failed or hung. The tier is tried again within a minute.",
		Remedy:  "findmnt --target {tier}; {journal} | grep 'kv tier' | tail",
		judge: func(s *scene, found func(hit)) {
			s.eachState(func(st store, state telemetry.State) {
				for _, t := range state.Tiers {
					if !t.Down {
						continue
					}
					h := s.stateHit(st, telemetry.Series("ollama_kv_tier_up", "tier", t.Name), "0", "The %s tier is left alone after failures.", t.Name).with("{tier}", machine.Quote(cmp.Or(t.Root, st.places[0].path)))
					if st.engine != nil && t.Name == telemetry.PlaceRemote {
						h.remedy = "{journal} | grep 'kv tier' | tail"
					}
					found(h)
				}
			})
		},
	},
	{
		ID: "dropped-pages", Severity: Warning, Title: "Pages could not be stored",
		Matters: "Their tokens are computed again.",
		Means:   "The disk was full, failed, or was too slow for the memory in which pages wait.",
		Remedy:  "{journal} | grep 'kv tier' | tail; {kvtier} bench --root {path}",
		judge: func(s *scene, found func(hit)) {
			s.eachState(func(st store, state telemetry.State) {
				const series, share = "ollama_kv_dropped_pages_total", .001 // totals never fall: a few drops long ago are no finding
				var sealed float64
				for _, m := range state.Models {
					for name, n := range m.Totals {
						if strings.HasPrefix(name, "ollama_kv_sealed_pages_total") {
							sealed += n
						}
					}
				}
				if n := sum(state, series); n > share*sealed {
					found(s.stateHit(st, series, fmt.Sprintf("%.0f", n), "%.0f pages could not be stored in %s.", n, st.places[0].path))
				}
			})
		},
	},
	{
		ID: "prompts-change", Severity: Warning, Title: "Prompts change at the front",
		Matters: "All tokens behind such a place are computed in each request, although they are the same.",
		Means:   "Prompts of one conversation differ at the same place each time, such as a clock or a list of files in the system message. Only a common beginning is restored.",
		Remedy:  "{kvtier} why --root {path}",
		judge: func(s *scene, found func(hit)) {
			const least = 3 // prompts in a row
			s.eachState(func(st store, state telemetry.State) {
				for _, p := range state.Processes {
					for _, b := range p.Busters {
						if b.Prompts < least || b.Lost <= 0 {
							continue
						}
						// Positions only: the text is shown by kvtier why, to its owner.
						h := s.stateHit(st, "model "+cmp.Or(p.Model.Name, p.Model.Weights[:min(len(p.Model.Weights), 12)]), fmt.Sprintf("%d tokens were computed again in %d prompts", b.Lost, b.Prompts),
							"%s in every prompt.", show.Changing(b.Begin, b.End))
						found(h)
					}
				}
			})
		},
	},
	{
		ID: "misses", Severity: Warning, Title: "Many stored tokens are computed",
		Matters: "They were stored in vain.",
		Means:   "The evidence names the cause. A larger budget keeps evicted pages, a failing disk, cable or share loses others, and each build, type of cache, size of page and namespace has pages of its own.",
		Remedy:  "{kvtier} why --root {path}",
		judge: func(s *scene, found func(hit)) {
			s.eachState(func(st store, state telemetry.State) {
				var all, computed float64
				for _, from := range []string{telemetry.PlaceSlot, telemetry.PlaceRAM, telemetry.PlaceLocal, telemetry.PlaceRemote, telemetry.PlaceShifted, telemetry.PlaceCompute} {
					n := sum(state, telemetry.Series("ollama_kv_prompt_tokens_total", "source", from))
					if all += n; from == telemetry.PlaceCompute {
						computed = n
					}
				}
				for _, cause := range missed {
					series := telemetry.Series("ollama_kv_missed_tokens_total", "cause", string(cause))
					n := sum(state, series)
					if n < missedTokens || n < missedShare*all {
						continue
					}
					h := s.stateHit(st, series, fmt.Sprintf("%.0f", n),
						"%.0f %% of all prompt tokens were not computed; without this it could have been %.0f %%.", 100*(all-computed)/all, min(100, 100*(all-computed+n)/all))
					h = h.also("next step", cause.Explain().Remedy)
					if cause == telemetry.CauseEvicted {
						double := 2 * max(st.LocalBytes, 10e9)
						h = h.with("{set}", s.by(st).setting(localGBVar, fmt.Sprint(double/1e9)))
						h.remedy = "{set}"
					}
					found(h)
				}
			})
		},
	},
}

// eachState calls fn for each directory whose counters are known.
func (s *scene) eachState(fn func(st store, state telemetry.State)) {
	for _, st := range s.stores {
		if st.state != nil {
			fn(st, *st.state)
		}
	}
}

func (s *scene) stateHit(st store, of, value, format string, args ...any) hit {
	local := st.places[0]
	return s.placeHit(st, local, of, value, format, args...).with("{tier}", machine.Quote(local.path), "{journal}", s.journal(s.by(st)))
}

// journal is the command that prints the log with a server's lines about its tier.
func (s *scene) journal(o server) string {
	for _, i := range s.installed {
		if i.Executable == o.Executable && i.Log != "" && !i.patched {
			return "sudo cat " + machine.Quote(i.Log) // the daemon has a log of its own
		}
	}
	switch o.Kind {
	case machine.BySystemd:
		return "journalctl -u " + machine.Quote(o.Name)
	case machine.ByDocker:
		return "docker logs " + machine.Quote(o.Name) + " 2>&1"
	}
	return "cat LOG" // standard error of a server that was started by hand
}

// unstored finds loaded models whose conversations are not stored for some causes.
func (s *scene) unstored(found func(hit), is func(telemetry.Obstacle) bool) {
	s.eachState(func(st store, state telemetry.State) {
		name := func(weights, own string) string { return cmp.Or(own, weights[:min(len(weights), 12)], "a model") }
		for _, p := range show.Processes(state, name) {
			if p.Unstored == nil || !is(p.Unstored.Cause) {
				continue
			}
			found(s.stateHit(st, unstored.Series(p.Unstored.Cause), cmp.Or(p.Unstored.Detail, "no reason is given"),
				"Conversations of %s are not stored: %s.", p.Model, p.Unstored.Means).also("next step", p.Unstored.Remedy))
		}
	})
}

func sum(state telemetry.State, series string) (n float64) {
	for _, m := range state.Models {
		n += m.Totals[series]
	}
	return n
}

// Bounds of a finding about misses: tokens that were computed for a cause, and their share of all.
const (
	missedTokens = 10_000
	missedShare  = .05
)

// missed are the causes of stored tokens that could not be read, or of tokens that were stored.
var missed = []telemetry.Cause{
	telemetry.CauseEvicted, telemetry.CauseDamaged, telemetry.CauseTierDown,
	telemetry.CauseBuild, telemetry.CauseType, telemetry.CausePageSize, telemetry.CauseNamespace,
}
