package collect

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// Bounds of strings, in bytes, besides [telemetry.NameBytesMax].
const (
	bootBytesMax    = 64
	weightsBytesMax = 128
	placeBytesMax   = 32
)

// totalMax bounds a total of one process. Doubles count up to 2^53 exactly.
const totalMax = 1e18

// checker notes the first thing that is wrong.
type checker struct{ err error }

func (c *checker) require(ok bool, format string, args ...any) {
	if c.err == nil && !ok {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *checker) text(what, s string, bytesMax int) {
	c.require(isText(s, bytesMax), "%s has control characters or more than %d bytes", what, bytesMax)
}

func (c *checker) natural(what string, n int64) { c.require(n >= 0, "%s is %d", what, n) }

func (c *checker) naturals(what string, all ...int) {
	for _, n := range all {
		c.natural(what, int64(n))
	}
}

// time refuses years that JSON cannot write, also in another time zone. The zero time is fine.
// Package time reads zones of 24 hours, and does not write them.
func (c *checker) time(what string, t time.Time) {
	year := t.UTC().Year()
	c.require(t.IsZero() || year >= 1969 && year <= 9000, "%s is in the year %d", what, year)
	_, err := t.MarshalJSON()
	c.require(err == nil, "%s cannot be written: %v", what, err)
}

// checkReport checks a report, and leaves out series that are not known.
func checkReport(r *telemetry.Report) error {
	var c checker
	c.require(r.Process.PID > 0, "the process has number %d", r.Process.PID)
	c.text("the boot", r.Process.Boot, bootBytesMax)
	c.require(r.Process.Engine == telemetry.EngineOllama || r.Process.Engine == telemetry.EngineLlama, "the engine is not known")
	c.time("the start", r.Started)
	c.time("the time", r.At)
	c.model(r.Model)
	r.Totals = c.series("totals", r.Totals, telemetry.Counter)
	r.Gauges = c.series("gauges", r.Gauges, telemetry.Gauge)
	for _, t := range r.Tiers {
		c.tier(t)
	}
	for _, s := range r.Slots {
		c.naturals("a count of a slot", s.ID, s.Tokens, s.Hot, s.Warm, s.Cold, s.Remote, s.Restored)
		c.natural("bytes of a slot", s.Bytes)
		c.time("a restore", s.LastRestore)
	}
	for _, m := range r.Memory {
		c.text("a name of memory", m.Name, telemetry.NameBytesMax)
		c.natural("memory", m.Bytes)
		c.natural("a limit of memory", m.Limit)
	}
	for i := range r.Prompts {
		c.prompt(&r.Prompts[i])
	}
	if u := r.Unstored; u != nil {
		if !slices.Contains(telemetry.Obstacles, u.Cause) {
			u.Cause = telemetry.ObstacleOther // of a newer program
		}
		c.text("a reason", u.Detail, telemetry.NameBytesMax)
		c.time("the begin of what is not stored", u.Since)
	}
	for _, b := range r.Busters {
		c.naturals("a count of a place that changes", b.Begin, b.End, b.Prompts, b.Lost)
		c.words(b.Words)
	}
	if u := r.Unpaged; u != nil {
		c.text("why a model is not paged", u.Reason, telemetry.NameBytesMax)
		c.text("a remedy", u.Remedy, telemetry.NameBytesMax)
	}
	return c.err
}

func (c *checker) model(m telemetry.Model) {
	c.text("the weights", m.Weights, weightsBytesMax)
	for what, s := range map[string]string{
		"the name": m.Name, "the architecture": m.Architecture, "the fingerprint": m.Fingerprint,
		"the namespace": m.Namespace, "the cache type": m.CacheType,
	} {
		c.text(what, s, telemetry.NameBytesMax)
	}
	c.naturals("the page's length", m.PageTokens)
	c.natural("the bytes of a token", m.TokenBytes)
}

// series returns the series of a kind that this build knows.
func (c *checker) series(what string, all map[string]float64, kind telemetry.Kind) map[string]float64 {
	c.require(len(all) <= telemetry.SeriesMax, "there are more than %d %s", telemetry.SeriesMax, what)
	if c.err != nil {
		return nil
	}
	known := make(map[string]float64, len(all))
	for key, value := range all {
		c.require(!math.IsNaN(value) && math.Abs(value) <= totalMax, "a value of the %s is %g", what, value)
		c.require(kind == telemetry.Gauge || value >= 0, "a total is negative: %g", value)
		if isSeries(key, kind) {
			known[key] = value
		}
	}
	return known
}

func (c *checker) tier(t telemetry.Tier) {
	c.require(slices.Contains([]string{telemetry.PlaceRAM, telemetry.PlaceLocal, telemetry.PlaceRemote}, t.Name), "a tier is not known")
	c.text("a tier's root", t.Root, telemetry.NameBytesMax)
	c.naturals("a count of a tier", t.Pages, t.Tails, t.Quarantined)
	for _, bytes := range []int64{t.Bytes, t.Booked, t.Budget, t.WrittenToday, t.WriteCap} {
		c.natural("bytes of a tier", bytes)
	}
}

// prompt checks a prompt. A private prompt has no Words, even if its process forgot that.
func (c *checker) prompt(p *telemetry.Prompt) {
	c.time("a prompt", p.At)
	c.naturals("a count of a prompt", p.ID, p.Tokens, p.Slot, p.RAM, p.Local, p.Remote, p.Shifted, p.Computed, p.Lossy)
	c.natural("a time of a prompt", int64(min(p.Restore, p.Took)))
	if p.Miss == nil {
		return
	}
	c.require(slices.Contains(telemetry.Causes, p.Miss.Cause), "a cause is not known")
	c.naturals("a position", p.Miss.At)
	c.text("a detail", p.Miss.Detail, telemetry.NameBytesMax)
	c.text("a place", p.Miss.From, placeBytesMax)
	c.time("an eviction", p.Miss.When)
	c.words(p.Miss.Words)
	if p.Private {
		p.Miss.Words = nil
	}
}

func (c *checker) words(w *telemetry.Words) {
	if w == nil {
		return
	}
	c.naturals("a position of words", w.Begin)
	c.require(len(w.Was) <= telemetry.WordsMax && len(w.Is) <= telemetry.WordsMax, "there are more than %d words", telemetry.WordsMax)
}
