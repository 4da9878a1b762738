package sizing

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Plan says how much fits where, how long it takes, and how to set a server. A pointer to a
// figure that is not known is nil.
type Plan struct {
	Model        string   `json:"model"`
	Architecture string   `json:"architecture"`
	CacheType    string   `json:"cache_type"`
	Notes        []string `json:"notes"` // sentences on parts that the figures leave out

	FullLayers   Figure  `json:"full_layers"`
	WindowLayers Figure  `json:"window_layers"`
	StateLayers  Figure  `json:"state_layers"`
	Weights      Figure  `json:"weights"`
	Token        Figure  `json:"token_bytes"`        // of all layers
	TokenFull    Figure  `json:"token_bytes_beyond"` // beyond the windows
	State        Figure  `json:"state_bytes"`
	Context      Figure  `json:"context"`
	Slots        Figure  `json:"slots"`
	Cells        Figure  `json:"cell_bytes"`    // of the engine's own cache, all slots
	Stored       Figure  `json:"stored_bytes"`  // the page files of one conversation of the context's length
	StoredLlama  Figure  `json:"stored_llama"`  // the same under llama-server
	Restored     Figure  `json:"restore_bytes"` // that a restore of it reads
	Team         *Figure `json:"team_bytes"`    // the page files of a team in an engine

	Places   []Place  `json:"places"`
	Defaults []Place  `json:"defaults"` // with the default budgets
	Engines  []Engine `json:"engines"`  // elastic memory and paged attention, where they are on
	Lengths  []Length `json:"lengths"`
	// BreakEven is the length from which on restoring from the disk is quicker than computing,
	// and NeverQuicker is true where that is no length of the context.
	BreakEven     *Figure `json:"break_even"`
	NeverQuicker  bool    `json:"never_quicker"`
	BreakEvenRead *Figure `json:"break_even_read"` // the slowest disk that is quicker at the context's length

	WrittenADay *Figure   `json:"written_per_day"`
	Life        *Figure   `json:"life"`
	Settings    []Setting `json:"settings"`
}

// Place is room for K/V.
type Place struct {
	Name          string  `json:"name"`
	Room          Figure  `json:"room"` // for K/V
	Tokens        Figure  `json:"tokens"`
	Conversations Figure  `json:"conversations"` // of the context's length
	Read          *Figure `json:"read"`          // bytes per second
	TokenTime     *Figure `json:"token_time"`    // to restore one token, of a conversation of the context's length
}

// Length compares restoring a prompt of some tokens with computing it.
type Length struct {
	Tokens  Figure  `json:"tokens"`
	Restore *Figure `json:"restore"`
	Compute *Figure `json:"compute"`
}

// Setting is an environment variable, and why it has its value.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Why   string `json:"why"`
}

const (
	// graphBytes is the video memory that is left beside weights and K/V.
	graphBytes = 1e9

	defaultLocalBytes = 20e9
	daysPerYear       = 365.25
	shortLifeYears    = 5
)

// Make makes a plan. in must have passed Check.
func Make(in Input) *Plan {
	s, t := in.Shape, in.CacheType
	context, slots := int64(in.Context.Value), int64(in.Slots.Value)
	full, window, state := s.Kinds()
	computed := func(v float64, unit, from string) Figure { return Figure{v, unit, Computed, from} }
	read := func(v float64, unit string) Figure { return Figure{v, unit, Read, in.Weights.From} }
	p := &Plan{
		Places: []Place{}, Model: in.Model, Architecture: s.Architecture, CacheType: t, Notes: append([]string{}, s.Unsure...),
		FullLayers: read(float64(full), Count), WindowLayers: read(float64(window), Count), StateLayers: read(float64(state), Count),
		Weights:   in.Weights,
		Token:     computed(float64(s.RowBytes(t)), Bytes, "layers × K/V heads × dimensions × bytes per element"),
		TokenFull: computed(float64(s.FullBytes(t)), Bytes, "the layers that keep all positions"),
		State:     computed(float64(s.StateBytes()), Bytes, "recurrent layers, f32"),
		Context:   in.Context, Slots: in.Slots,
		Cells:       computed(float64(s.CellBytes(context, slots, t)), Bytes, "cells of all slots"),
		Stored:      computed(float64(s.StoredBytes(context, t)), Bytes, "rows of all layers"),
		StoredLlama: computed(float64(s.RestoreBytes(context, t)), Bytes, "windows and states at the end alone"),
		Restored:    computed(float64(s.RestoreBytes(context, t)), Bytes, "of windows, the positions that are kept"),
	}
	if in.Team.known() {
		team := computed(in.Team.Value*p.StoredLlama.Value, Bytes, fmt.Sprintf("%.0f people, a context each, under llama-server", in.Team.Value))
		p.Team = &team
	}
	if s.Context > 0 && context > s.Context {
		p.Notes = append(p.Notes, fmt.Sprintf("The model was trained for %d tokens, and Ollama lowers a longer context to that.", s.Context))
	}
	p.places(&in)
	p.times(&in)
	p.wear(&in)
	p.engines(&in)
	p.settings(&in)
	return p
}

func (p *Plan) places(in *Input) {
	if in.VRAM.Origin != "" {
		p.Places = append(p.Places, p.vram(in))
	}
	one := Figure{1, Ratio, Computed, "decoded"}
	if in.RAM.Origin != "" {
		p.Places = append(p.Places, p.place(in, "ram", in.RAM, one, in.Memory))
	}
	if in.SSD.Origin != "" {
		p.Places = append(p.Places, p.place(in, "local", in.SSD, in.Encoded, in.Disk))
	}
	if in.Remote.known() {
		p.Places = append(p.Places, Place{Name: "remote", Read: &in.Remote, TokenTime: p.tokenTime(in, in.Remote)})
	}
	local := Figure{defaultLocalBytes, Bytes, Read, "default of OLLAMA_KV_TIER_LOCAL_GB"}
	p.Defaults = append(p.Defaults, p.place(in, "default ram", Figure{0, Bytes, Read, "default of OLLAMA_KV_TIER_RAM_GB"}, one, in.Memory),
		p.place(in, "default local", local, in.Encoded, in.Disk))
}

// vram is the room beside the weights.
func (p *Plan) vram(in *Input) Place {
	room := in.VRAM.Value - in.Weights.Value - graphBytes
	place := Place{Name: "vram", Room: Figure{max(0, room), Bytes, Assumed, "--vram less the weights and 1 GB for graphs"}}
	if room < 0 {
		p.Notes = append(p.Notes, "The weights do not fit in the video memory: some layers, and their K/V, are in the machine's memory.")
	}
	slots := int64(in.Slots.Value)
	most := sort.Search(CellsMax/int(slots), func(n int) bool {
		return float64(in.Shape.CellBytes(int64(n)+1, slots, in.CacheType)) > max(0, room)
	})
	tokens := float64(int64(most) * slots)
	place.Tokens = Figure{tokens, Tokens, Assumed, "in cells of all slots"}
	place.Conversations = Figure{tokens / in.Context.Value, Conversations, Assumed, "of the context's length"}
	return place
}

// place is room for pages.
func (p *Plan) place(in *Input, name string, room, encoded, rate Figure) Place {
	stored := p.Stored.Value * encoded.Value
	conversations := room.Value / stored
	origin := weakest(room, encoded)
	place := Place{
		Name: name, Room: room,
		Tokens:        Figure{math.Floor(conversations * in.Context.Value), Tokens, origin, "room ÷ bytes of a stored token"},
		Conversations: Figure{conversations, Conversations, origin, "of the context's length"},
	}
	if rate.known() {
		place.Read = &rate
		place.TokenTime = p.tokenTime(in, rate)
	}
	return place
}

// tokenTime is the time of one token in the restore of a whole context.
func (p *Plan) tokenTime(in *Input, rate Figure) *Figure {
	return &Figure{p.Restored.Value / rate.Value / in.Context.Value, Seconds, weakest(rate), "bytes of a restore ÷ rate"}
}

// comparedLengths are the lengths at which restoring is compared with computing, beside the context's own.
var comparedLengths = []int64{1024, 8192, 32768, 131072}

func (p *Plan) times(in *Input) {
	context := int64(in.Context.Value)
	lengths := slices.DeleteFunc(slices.Clone(comparedLengths), func(n int64) bool { return n >= context })
	for _, n := range append(lengths, context) {
		l := Length{Tokens: Figure{float64(n), Tokens, Computed, ""}}
		if in.Disk.known() {
			l.Restore = &Figure{in.restoring(n), Seconds, weakest(in.Disk), "from the local tier"}
		}
		if in.Compute != nil {
			l.Compute = &Figure{in.Compute(0, n), Seconds, cmp.Or(in.ComputeFrom.Origin, Computed), in.ComputeFrom.From}
		}
		p.Lengths = append(p.Lengths, l)
	}
	if in.Compute == nil {
		return
	}
	origin := weakest(in.Disk, in.ComputeFrom)
	if whole := in.Compute(0, context); whole > 0 {
		p.BreakEvenRead = &Figure{p.Restored.Value / whole, BytesPerS, origin, "bytes of a restore ÷ time to compute it"}
	}
	if !in.Disk.known() {
		return
	}
	if n, ok := in.breakEven(context); ok {
		p.BreakEven = &Figure{float64(n), Tokens, origin, "in steps of a page"}
	} else {
		p.NeverQuicker = true
	}
}

func (in *Input) restoring(n int64) float64 {
	return float64(in.Shape.RestoreBytes(n, in.CacheType)) / in.Disk.Value
}

// breakEvenSteps bounds the lengths that are tried.
const breakEvenSteps = 1 << 14

// breakEven is the shortest length from which on restoring is quicker than computing, up to
// the context's. The gate of a server decides by the same comparison.
func (in *Input) breakEven(context int64) (tokens int64, ok bool) {
	step := max(in.PageTokens, context/breakEvenSteps)
	for n := context; ; n = (n - 1) / step * step {
		if n < 1 || in.restoring(n) > in.Compute(0, n) {
			return tokens, ok
		}
		tokens, ok = n, true
	}
}

// paged reports whether the K/V of the slots needs paged attention, and the model can have it: the K/V does
// not fit in the video memory, but in the memory that was given for it.
func (p *Plan) paged(in *Input) bool {
	return in.VRAM.Origin != "" && in.RAM.known() && p.pageable() && p.Cells.Value > p.Places[0].Room.Value
}

// wear works out how long the disk lasts.
func (p *Plan) wear(in *Input) {
	if !in.TokensADay.known() {
		return
	}
	origin := weakest(in.TokensADay, in.Encoded)
	perToken := p.Stored.Value / in.Context.Value
	p.WrittenADay = &Figure{in.TokensADay.Value * perToken * in.Encoded.Value, BytesPerDay, origin, "tokens × bytes of a stored token × encoding"}
	p.Life = &Figure{in.Written.Value / p.WrittenADay.Value / daysPerYear, Years, weakest(in.Written, *p.WrittenADay), fmt.Sprintf("for %.0f TB of writing", in.Written.Value/1e12)}
}

const (
	bytesPerMB = 1e6
	bytesPerGB = 1e9 // the unit of the variables
)

// oldEngine are architectures whose models the patched releases run on the llama.cpp runner, which is neither
// tiered nor paged nor elastic, unless OLLAMA_NEW_ENGINE=1 is set.
var oldEngine = []string{"llama", "qwen2"}

// unpaged are architectures that paged attention cannot compute: they mask their scores themselves (gemma2),
// or have K and V heads of different lengths (deepseek2). Their models are loaded without it.
var unpaged = []string{"deepseek2", "gemma2"}

func (p *Plan) settings(in *Input) {
	set := func(name, value, why string) { p.Settings = append(p.Settings, Setting{name, value, why}) }
	set("OLLAMA_KV_TIERING", "1", "turns tiering on")
	if slices.Contains(oldEngine, p.Architecture) {
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
		if in.Elastic {
			set("OLLAMA_KVCACHED", "0", "with it and paged attention no model is loaded")
		}
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
