package sizing

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

const (
	bytesPerMB = 1e6
	bytesPerGB = 1e9 // the unit of the variables
)

// needsNewEngine reports whether the patched releases run models of an architecture on the llama.cpp
// runner, which is neither tiered nor paged nor elastic, unless OLLAMA_NEW_ENGINE=1 is set.
func needsNewEngine(architecture string) bool {
	return architecture == "llama" || architecture == "qwen2"
}

// unpaged are architectures that paged attention cannot compute: they keep recurrent state, mask their
// scores themselves (gemma2), or have K and V heads of different lengths (deepseek2). Their models are
// loaded without it.
var unpaged = []string{"deepseek2", "gemma2", "lfm2", "nemotron_h", "qwen35", "qwen3next"}

// settings are the variables of a server as it was planned.
func (p *Plan) settings(in *Input) {
	set := func(name, value, why string) { p.Settings = append(p.Settings, Setting{name, value, why}) }
	set("OLLAMA_KV_TIERING", "1", "turns tiering on")
	if needsNewEngine(p.Architecture) {
		set("OLLAMA_NEW_ENGINE", "1", "runs "+p.Architecture+" models on the engine that is tiered, in the patched releases")
	}
	set("OLLAMA_CONTEXT_LENGTH", whole(in.Context.Value), "the context that was planned")
	if in.Slots.Value > 1 {
		set("OLLAMA_NUM_PARALLEL", whole(in.Slots.Value), "the slots that were planned")
	}
	if in.CacheType != "f16" {
		set("OLLAMA_KV_CACHE_TYPE", in.CacheType, "the type of K/V that was planned; it needs flash attention")
	}
	if in.SSD.known() {
		set("OLLAMA_KV_TIER_LOCAL_GB", gigabytes(in.SSD.Value), "--ssd")
	}
	ram := in.RAM.Value
	if p.paged(in) {
		host := min(ram, p.Cells.Value)
		ram -= host
		set("OLLAMA_PAGED_ATTN", "1", "the K/V does not fit in the video memory; counts in the patched releases only")
		set("OLLAMA_PAGED_HOST_GB", gigabytes(min(in.RAM.Value, host+bytesPerMB-1)), "memory for K/V, of --ram")
	}
	switch {
	case !in.RAM.known() || ram < bytesPerGB/10:
	case in.RAMPays:
		set("OLLAMA_KV_TIER_RAM_GB", gigabytes(ram), "--ram; pages are compressed or come from a remote tier")
	default:
		p.Notes = append(p.Notes, "No RAM tier is set: pages are neither compressed nor remote, and the system's page cache keeps them in free memory anyhow.")
	}
	if p.Life != nil && p.Life.Value < shortLifeYears {
		cap := in.Written.Value / shortLifeYears / daysPerYear
		set("OLLAMA_KV_TIER_WRITE_GB_PER_DAY", gigabytes(cap), fmt.Sprintf("the disk then lasts %d years", shortLifeYears))
	}
}

func whole(n float64) string { return strconv.FormatFloat(n, 'f', 0, 64) }

// gigabytes rounds down to a MB.
func gigabytes(bytes float64) string {
	return strconv.FormatFloat(math.Floor(bytes/bytesPerMB)*bytesPerMB/bytesPerGB, 'f', -1, 64)
}

// Systemd is a drop-in of a service with the settings.
func (p *Plan) Systemd() string {
	var b strings.Builder
	b.WriteString("[Service]\n")
	for _, s := range p.Settings {
		fmt.Fprintf(&b, "Environment=\"%s=%s\"\n", s.Name, s.Value)
	}
	return b.String()
}
