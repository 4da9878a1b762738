package kvcache

import (
	"github.com/ollama/ollama/model/input"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// MediaDigest returns the SHA-256 of an image or a sound. hash is the runner's own hash, which is valid
// in this process only. ok is false for media without an identity beyond the process.
type MediaDigest func(hash uint64) (digest [32]byte, ok bool)

// prompt identifies the rows of a sequence: tokens, and the content of the media among them.
type prompt struct {
	tokens []int32
	media  []pagefile.Media // offsets count from position 0
	spans  []span           // positions that are computed in one batch
}

// span is positions [begin, end) that must be computed in one batch.
type span struct{ begin, end int }

// identity gives inputs an identity that outlives the process.
type identity struct {
	media     MediaDigest
	reach     int  // see Options.Reach
	backwards bool // see Options.Backwards
}

// read identifies a request's inputs, as [MediaDigest.read].
func (id *identity) read(inputs []*input.Input) (text prompt, identified bool) {
	text, identified = id.media.read(inputs)
	if id.reach > 0 {
		for i := range text.media {
			text.media[i].Hash = pagefile.Reaching(text.media[i].Hash)
		}
	}
	return text, identified
}

// read takes inputs up to the first one without identity; identified is false if there is one.
func (d MediaDigest) read(inputs []*input.Input) (text prompt, identified bool) {
	text.tokens = make([]int32, 0, len(inputs))
	for i, in := range inputs {
		if in.MultimodalHash != 0 || len(in.Multimodal) != 0 {
			digest, ok := d.of(in)
			if !ok {
				return text, false
			}
			text.media = append(text.media, pagefile.Media{Offset: uint32(i), Hash: digest})
		}
		if in.SameBatch > 0 {
			text.spans = append(text.spans, span{i, i + in.SameBatch + 1})
		}
		text.tokens = append(text.tokens, in.Token)
	}
	return text, true
}

func (d MediaDigest) of(in *input.Input) ([32]byte, bool) {
	if d == nil || in.MultimodalHash == 0 {
		return [32]byte{}, false
	}
	return d(in.MultimodalHash)
}

// boundary is the last position up to n that is not inside a span: tokens that attend to
// later ones of the same span are computed together or not at all.
func (text *prompt) boundary(n int) int {
	for i := len(text.spans) - 1; i >= 0; i-- {
		if s := text.spans[i]; s.begin < n && n < s.end {
			n = s.begin
		}
	}
	return n
}

// reached is the k-th image, if its batch ends at a position.
func (text *prompt) reached(k, end int) pagefile.Media {
	m := text.media[k]
	begin := int(m.Offset)
	m.Hash = pagefile.Reached(m.Hash, text.tokens[begin:end], pagefile.MediaWithin(text.media, begin, end-begin))
	return m
}

// ends notes where the batch ended that has the k-th image, and other images before the end.
func (text *prompt) ends(k, end int) {
	for ; k < len(text.media) && int(text.media[k].Offset) < end; k++ {
		text.media[k] = text.reached(k, end)
	}
}
