package sizing

import (
	"math"
	"slices"

	"github.com/kvtier/kvtier/pagedenv"
)

// Engine is how a patched release holds the K/V of all slots, with elastic memory or paged attention. A figure
// that is not known, or that the model cannot have, is nil.
type Engine struct {
	Name      string  `json:"name"`
	Page      *Figure `json:"page"`       // tokens
	PageBytes *Figure `json:"page_bytes"` // paged attention: of the largest layer
	ColdType  string  `json:"cold_type"`  // of its rows on disk
	Tensors   *Figure `json:"tensors"`    // paged attention: tokens of all slots up to which K/V is not in pages
	Video     *Figure `json:"video"`      // most video memory for K/V, without the model's other memory
	Memory    *Figure `json:"memory"`     // paged attention: host memory; elastic memory: first limit of a device
	Otherwise string  `json:"otherwise"`  // without support of the model or the machine
}

const (
	elasticCells = 256 // of a block, which gets and loses its memory at once

	tensorCells  = 256  // K/V is in tensors for multiples of them
	tensorMargin = 0.05 // of the room for them, which a patched release leaves

	reserveShare = 16        // of the card: what pages leave free
	reserveMin   = 512 << 20 // bytes of it
)

// engines adds what the settings, or the plan's own, ask for.
func (p *Plan) engines(in *Input) {
	p.Engines = []Engine{}
	planned := p.paged(in)
	if in.Paged || planned {
		p.Engines = append(p.Engines, p.pagedEngine(in, planned))
	}
	if in.Elastic && !planned {
		p.Engines = append(p.Engines, p.elasticEngine(in))
	}
}

func (p *Plan) pagedEngine(in *Input, planned bool) Engine {
	e := Engine{Name: "paged attention", ColdType: p.coldType(in), Otherwise: "loaded without, where the machine cannot page the model"}
	switch {
	case !p.pageable():
		return Engine{Name: e.Name, ColdType: e.ColdType, Otherwise: "a model of this architecture is loaded without"}
	case in.Elastic && !planned:
		e.Otherwise = "no model is loaded: OLLAMA_KVCACHED=1 is set as well"
	}
	page := float64(in.Shape.PageBytes(int64(in.PagedCells.Value), in.CacheType))
	e.Page = &in.PagedCells
	e.PageBytes = &Figure{page, Bytes, Computed, "of the largest layer"}
	whole := in.Shape.StoredBytes(int64(in.Context.Value*in.Slots.Value), in.CacheType)
	switch {
	case planned:
		e.Memory = &Figure{min(in.RAM.Value, p.Cells.Value), Bytes, weakest(in.RAM), "of --ram"}
	case in.PagedHost.known():
		e.Memory = &in.PagedHost
	case in.Hot.Origin != "":
		e.Memory = &Figure{max(2*page, in.Hot.Value*float64(whole)), Bytes, weakest(in.Hot), in.Hot.From + ", if half of the available memory is more"}
	default:
		e.Memory = &Figure{pagedenv.DefaultHostBytes, Bytes, Assumed, "half of the available memory is more"}
	}
	e.Tensors = p.tensors(in)
	e.Video = p.video(in, e.Tensors)
	return e
}

// tensors is how many tokens are in Ollama's own tensors before all are in pages: those that a card has room
// for, where it holds the model.
func (p *Plan) tensors(in *Input) *Figure {
	whole := in.Context.Value * in.Slots.Value
	after := in.PagedAfter
	switch {
	case after.Origin != "":
	case in.VRAM.Origin == "":
		return nil
	case p.Cells.Value <= p.Places[0].Room.Value:
		return &Figure{whole, Tokens, p.Places[0].Room.Origin, "all of them: nothing is in pages"}
	case p.TokenFull.Value == 0:
		return nil
	default:
		windows := p.Cells.Value - whole*p.TokenFull.Value
		room := (p.Places[0].Room.Value - windows) * (1 - tensorMargin)
		after = Figure{max(0, room/p.TokenFull.Value), Tokens, Assumed, "what the model leaves of --vram"}
	}
	if after.Value >= whole {
		return &Figure{whole, Tokens, after.Origin, "all of them: nothing is in pages"}
	}
	after.Value = math.Floor(after.Value/tensorCells) * tensorCells
	return &after
}

// video is the most video memory for K/V: that of tensors, or later that of copies of pages.
func (p *Plan) video(in *Input, tensors *Figure) *Figure {
	pages := p.videoPages(in)
	if in.VRAM.Origin == "" || tensors == nil || tensors.Value == 0 {
		return pages
	}
	whole := in.Context.Value * in.Slots.Value
	held := p.Cells.Value - (whole-tensors.Value)*p.TokenFull.Value
	if held < pages.Value {
		return pages
	}
	return &Figure{held, Bytes, tensors.Origin, "the tensors before pages"}
}

// videoPages is the most video memory for copies of pages. Their reserve stays free.
func (p *Plan) videoPages(in *Input) *Figure {
	if in.VRAM.Origin == "" {
		if in.PagedVRAM.Origin != "" {
			return &in.PagedVRAM
		}
		return nil
	}
	room := max(0, p.Places[0].Room.Value-max(in.VRAM.Value/reserveShare, reserveMin))
	most := &Figure{min(room, p.Cells.Value), Bytes, Assumed, "copies, in what the model leaves, less a reserve"}
	if in.PagedVRAM.Origin != "" && in.PagedVRAM.Value < most.Value {
		return &in.PagedVRAM
	}
	return most
}

func (p *Plan) elasticEngine(in *Input) Engine {
	e := Engine{Name: "elastic memory", ColdType: p.coldType(in), Otherwise: "memory for the whole context, where the machine cannot change it"}
	switch {
	case p.TokenFull.Value == 0:
		return Engine{Name: e.Name, ColdType: e.ColdType, Otherwise: "no layer of the model keeps all positions: memory for the whole context"}
	case in.Paged:
		e.Otherwise = "no model is loaded: OLLAMA_PAGED_ATTN=1 is set as well"
	}
	e.Page = &Figure{elasticCells, Tokens, Read, "the patched releases"}
	e.PageBytes = &Figure{elasticCells * p.TokenFull.Value, Bytes, Computed, "of the layers that keep all positions"}
	whole := in.Context.Value * in.Slots.Value * p.TokenFull.Value
	switch {
	case in.ElasticLimit.known():
		e.Memory = &Figure{min(whole, in.ElasticLimit.Value), Bytes, in.ElasticLimit.Origin, in.ElasticLimit.From}
	case in.Hot.known():
		e.Memory = &Figure{math.Floor(in.Hot.Value * whole), Bytes, weakest(in.Hot), in.Hot.From}
	default:
		e.Memory = &Figure{whole, Bytes, Computed, "the whole context of all slots"}
	}
	if in.VRAM.Origin != "" {
		e.Video = &Figure{min(e.Memory.Value, p.Places[0].Room.Value), Bytes, Assumed, "as tokens come"}
	}
	return e
}

// coldType is the type of rows on the local disk, and the one that rows take on their way to the remote tier.
func (p *Plan) coldType(in *Input) string {
	if in.Cold == "" || in.CacheType != "f16" || p.WindowLayers.Value > 0 || p.StateLayers.Value > 0 {
		return in.CacheType
	}
	return in.CacheType + ", remote " + in.Cold
}

// pageable reports whether paged attention can compute the model.
func (p *Plan) pageable() bool {
	return !slices.Contains(unpaged, p.Architecture)
}
