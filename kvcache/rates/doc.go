// Package rates decides which stored pages of a prompt are worth reading, from what
// computing and reading have cost so far.
//
// Computing the token at position p takes a + b·p seconds: b is attention, which looks at
// every token before. A page from a tier takes f + s·bytes seconds. Both lines are fitted
// to what was observed, robustly, because machines are busy now and then, and with more
// weight on what is recent. [Rates] keeps them per way of computing (a model's fingerprint,
// and which devices hold it) and per tier (its directory) in one small JSON file, so that the
// first prompt after a restart is decided as well as the last one before.
//
// # Decisions
//
// [Rates.Plan] says how many leading pages to read so that reading them and computing the
// rest takes least. A tier that nothing is known about is read from.
//
// [Watch] follows a restore while it runs. It stops it when the rest would now be computed
// sooner than it arrives, and says how long a page that is waited for may take: what was
// predicted, and what computing it takes. So a tier that turns out to be slow costs a
// request about one page's computing, once: from then on it is refused.
//
// A tier that is refused is read from again now and then to see whether it is quick now,
// behind the requests and not by one of them: [Rates.Probe].
//
// Times go in as durations that the caller measured; of the clock only the age of the last
// probe is taken. Nothing here knows an engine or reads a page.
package rates
