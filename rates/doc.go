// Package rates has the rule by which package engine reads stored pages or has them computed: the measured
// costs of both.
//
// Computing the token at position p takes a + b·p seconds: b is attention, which looks at every token
// before. A page from a tier has two costs, each f + s·bytes seconds: what it takes when it is read alone, and
// by what it makes a run of pages longer of which several are read at a time. Round trips of pages overlap,
// and bytes do not. Pages that are decoded after reading have lines of their own ([Form]). All lines are fitted to observations: robustly, because machines are busy now
// and then, and with more weight on recent ones. [Rates] keeps the lines per way of computing (a
// model's fingerprint, and which devices hold it) and per tier (its directory) in one small JSON file,
// so that decisions after a restart are as good as before.
//
// # Decisions
//
// [Rates.Plan] says how many leading pages to read so that reading them and computing the
// rest takes least. A tier without observations is read from.
//
// [Watch] follows a restore while it runs. It stops the restore when computing the rest would be
// quicker than waiting for it, and sets the time that a page may take. From a tier that was measured, that is
// what reading up to three pages was predicted to take, and what computing one takes. From any other tier the
// first page is read alone, and waited for as long as the whole can still be read sooner than computed, where
// every three pages take as long. A tier that turns out to be slow therefore costs a request at most the time
// of computing it once more, and a long request that of computing six pages. The tier is then expected to take as
// long until a page is read sooner.
//
// [Rates.Probe] reads from such a tier again now and then, behind the requests, to see
// whether the tier is quick again.
//
// Callers pass durations that they measured; the clock gives only the age of the last probe.
// The package knows no engine and reads no page.
package rates
