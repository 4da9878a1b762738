package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/kvtier/kvtier/internal/bench/evict"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/bench/team"
)

// schema changes when the meaning of a field changes.
const schema = 1

// Report holds all measurements of a run: after the settings a field for each of [parts], with its
// name. Times are in seconds, rates per second.
type Report struct {
	Schema   int             `json:"schema"`
	Machine  measure.Machine `json:"machine"`
	Versions Versions        `json:"versions"`
	Settings Settings        `json:"settings"`
	TTFT     *TTFT           `json:"ttft,omitempty"`
	Chat     *Chat           `json:"chat,omitempty"`
	Cost     *Cost           `json:"cost,omitempty"`
	Restore  *Restore        `json:"restore,omitempty"`
	Slots    *Slots          `json:"slots,omitempty"`
	Warm     *Warm           `json:"warm,omitempty"`
	Remote   *Remote         `json:"remote,omitempty"`
	Moved    *Moved          `json:"moved,omitempty"`
	Near     *Near           `json:"near,omitempty"`
	Paged    *Paged          `json:"paged,omitempty"`
	Elastic  *Elastic        `json:"elastic,omitempty"`
	Store    *Store          `json:"store,omitempty"`
	Team     *team.Report    `json:"team,omitempty"`
	Evict    *evict.Report   `json:"evict,omitempty"`
}

// Versions are those of the compared programs.
type Versions struct {
	Kvtier string `json:"kvtier"` // as the patched server reports it
	Stock  string `json:"stock"`  // as the other server reports it
	// StockIsPatched: without an unpatched build, the patched one with the tier off took its
	// place.
	StockIsPatched bool   `json:"stock_is_patched"`
	Go             string `json:"go"` // Go version of this command
}

// Settings are the parameters of the run.
type Settings struct {
	Model           string `json:"model"`
	KVBytesPerToken int64  `json:"kv_bytes_per_token"`
	NumCtx          int    `json:"num_ctx"`
	PageTokens      int    `json:"page_tokens"`
	Slots           int    `json:"slots"`
	Repetitions     int    `json:"repetitions"` // repetitions of ttft
	Pairs           int    `json:"pairs"`       // pairs of prompts of cost
	Quick           bool   `json:"quick,omitempty"`
}

// field is the part of a name, a pointer.
func (r *Report) field(name string) reflect.Value {
	return reflect.ValueOf(r).Elem().FieldByNameFunc(func(field string) bool { return strings.EqualFold(field, name) })
}

// keep takes over the parts of an older report that r lacks, if both have the same machine,
// kvtier and settings, so that benchmarks can be repeated one by one. A part measured
// without a server has no version and fits any.
func (r *Report) keep(old *Report) {
	mine, theirs := r.Machine, old.Machine
	mine.BusyBefore, theirs.BusyBefore = 0, 0
	sameVersion := r.Versions.Kvtier == old.Versions.Kvtier || r.Versions.Kvtier == "" || old.Versions.Kvtier == ""
	if mine != theirs || !sameVersion || r.Settings != old.Settings {
		return
	}
	if r.Versions.Kvtier == "" {
		r.Versions.Kvtier = old.Versions.Kvtier
	}
	if r.TTFT == nil {
		r.Versions.Stock, r.Versions.StockIsPatched = old.Versions.Stock, old.Versions.StockIsPatched
	}
	for _, p := range parts {
		if mine := r.field(p.name); mine.IsNil() {
			mine.Set(old.field(p.name))
		}
	}
}

// print writes a report as tables.
func (r *Report) print(w io.Writer) {
	m, s := r.Machine, r.Settings
	kind := ""
	if m.Virtual {
		kind = " (virtual machine)"
	}
	fmt.Fprintf(w, "machine   %s, %d cores%s, %.0f GiB, %s %s, %s\n",
		m.CPU, m.Cores, kind, float64(m.MemoryBytes)/(1<<30), m.OS, m.Kernel, m.Filesystem)
	if r.Versions.Kvtier != "" {
		fmt.Fprintf(w, "ollama    %s", r.Versions.Kvtier)
		switch {
		case r.TTFT == nil:
		case r.Versions.StockIsPatched:
			fmt.Fprintf(w, "; no unpatched one was given (%s): the patched one with the tier off took its place", stockEnv)
		default:
			fmt.Fprintf(w, "; stock: %s, unpatched", r.Versions.Stock)
		}
		fmt.Fprintf(w, "\nmodel     %s; %s bytes of K/V per token\n", s.Model, show.Count(int(s.KVBytesPerToken)))
		fmt.Fprintf(w, "settings  context %s, pages of %d tokens, 1 slot; median (smallest–largest)\n",
			show.Count(s.NumCtx), s.PageTokens)
	}
	if m.BusyBefore > measure.BusyShare {
		fmt.Fprintf(w, "warning   the machine was %.0f %% busy with something else before: measure again when it is not\n", 100*m.BusyBefore)
	}
	if s.Quick {
		fmt.Fprintln(w, "warning   -quick: the figures mean nothing")
	}
	for _, p := range parts {
		part := r.field(p.name)
		if part.IsNil() {
			continue
		}
		if own, ok := part.Interface().(interface{ Print(io.Writer) }); ok {
			own.Print(w)
		} else {
			show.Figures(w, p.name, part.Interface())
		}
	}
}

// load reads a report that was saved.
func load(path string) (*Report, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("opening the report: %w", err)
	}
	r := &Report{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("reading the report %s: %w", path, err)
	}
	if r.Schema != schema {
		return nil, fmt.Errorf("reading the report %s: it has schema %d, this command reads %d; measure again", path, r.Schema, schema)
	}
	return r, nil
}
