// Package rates has the rule by which package engine reads stored pages or has them computed: the measured
// costs of both.
//
// Computing the token at position p takes a + b·p seconds: b is attention, which looks at every token
// before. A page from a tier takes f + s·bytes seconds; pages that are decoded after reading have lines
// of their own ([Form]). All lines are fitted to observations: robustly, because machines are busy now
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
// quicker than waiting for it, and sets the time that a page may take: the sum of what computing a page
// takes and what reading up to three was predicted to take. A tier that turns out to be slow therefore
// costs a request little more than the computing of one page: that page's time is from then on the least
// that the tier is expected to take for as many bytes.
//
// [Rates.Probe] reads from such a tier again now and then, behind the requests, to see
// whether the tier is quick again.
//
// Callers pass durations that they measured; the clock gives only the age of the last probe.
// The package knows no engine and reads no page.
package rates
