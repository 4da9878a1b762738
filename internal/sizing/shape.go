package sizing

import (
	"errors"
	"fmt"
	"math"
)

// cacheTypes are the types of K/V that Ollama knows.
var cacheTypes = []string{"f16", "q8_0", "q4_0"}

const (
	blockElements = 32 // of q8_0 and q4_0
	f16Bytes      = 2
	q8Bytes       = 34 // of a block
	q4Bytes       = 18
	f32Bytes      = 4

	layersMax   = 4096
	elementsMax = 1 << 24 // of a row
	keepsMax    = 1 << 40
	stateMax    = 1 << 34 // bytes of a layer, and of all
)

// rowBytes is the size of a row of elements in a cache of a type.
func rowBytes(elements int64, cacheType string) int64 {
	blocks := (elements + blockElements - 1) / blockElements
	switch cacheType {
	case "q8_0":
		return blocks * q8Bytes
	case "q4_0":
		return blocks * q4Bytes
	}
	return elements * f16Bytes
}

// Layer is one layer of a model. A layer that has neither rows nor state is all zeros.
type Layer struct {
	// K and V are the elements of a token's rows.
	K, V int64
	// Window is the number of positions to which a token attends, and Keeps the number that the
	// patched Ollama keeps; 0 for all.
	Window, Keeps int64
	// State is the size of a state that does not grow with the tokens, in bytes.
	State int64
}

func (l Layer) bytes(cacheType string) int64 {
	return rowBytes(l.K, cacheType) + rowBytes(l.V, cacheType)
}

// Shape is the part of a model that decides how large its K/V is.
type Shape struct {
	Architecture string
	Layers       []Layer
	Context      int64 // that the model was trained for; 0 if the file does not say
	// Unsure are sentences about parts that the figures leave out.
	Unsure []string
}

// RowBytes is the size of one token's K/V in all layers.
func (s *Shape) RowBytes(cacheType string) int64 {
	return s.sum(cacheType, func(Layer) bool { return true })
}

// FullBytes is the size of one token's K/V in the layers that keep all positions.
func (s *Shape) FullBytes(cacheType string) int64 {
	return s.sum(cacheType, func(l Layer) bool { return l.Keeps == 0 })
}

func (s *Shape) sum(cacheType string, counts func(Layer) bool) (n int64) {
	for _, l := range s.Layers {
		if counts(l) {
			n += l.bytes(cacheType)
		}
	}
	return n
}

// StateBytes is the size of the states of one sequence.
func (s *Shape) StateBytes() (n int64) {
	for _, l := range s.Layers {
		n += l.State
	}
	return n
}

// CellBytes is the memory of the engine's cells for slots sequences of context tokens each.
// A layer with a window has cells for its window and for one batch.
func (s *Shape) CellBytes(context, slots int64, cacheType string) int64 {
	n := slots * s.StateBytes()
	for _, l := range s.Layers {
		n += l.cells(context, slots) * l.bytes(cacheType)
	}
	return n
}

// cells is the number of cells of a layer's cache, as the patched Ollama makes them.
func (l Layer) cells(context, slots int64) int64 {
	keeps := l.Keeps
	if slots > 1 {
		keeps = max(keeps, l.Window+1)
	}
	if l.Keeps == 0 || keeps >= context {
		return context * slots
	}
	return keeps*slots + batchTokens
}

// RestoreBytes are the bytes that a restore of a sequence of tokens reads: of a layer with a window, only
// the positions that it still keeps.
func (s *Shape) RestoreBytes(tokens int64, cacheType string) int64 {
	n := s.StateBytes()
	for _, l := range s.Layers {
		rows := tokens
		if l.Keeps > 0 {
			rows = min(rows, l.Keeps)
		}
		n += rows * l.bytes(cacheType)
	}
	return n
}

// StoredBytes are the bytes in the pages of a sequence in the patched releases: the rows
// of all layers, and a state after every statePeriod tokens and at the end.
func (s *Shape) StoredBytes(tokens int64, cacheType string) int64 {
	states := int64(0)
	if s.StateBytes() > 0 {
		states = tokens/statePeriod + 1
	}
	return tokens*s.RowBytes(cacheType) + states*s.StateBytes()
}

// ContextBytes is the size of the K/V of cells tokens, those of all slots, in pages; 0 for no cells.
func (s *Shape) ContextBytes(cells int, cacheType string) (int64, error) {
	switch {
	case cells < 0 || cells > CellsMax:
		return 0, fmt.Errorf("a context of %d tokens is not one that can be divided", cells)
	case cells == 0:
		return 0, nil
	}
	return s.StoredBytes(int64(cells), cacheType), nil
}

// PageBytes is the size of a page of paged attention with so many tokens, of the largest layer. K and V
// each fill whole blocks of the disk.
func (s *Shape) PageBytes(tokens int64, cacheType string) (n int64) {
	for _, l := range s.Layers {
		n = max(n, alignUp(tokens*rowBytes(l.K, cacheType))+alignUp(tokens*rowBytes(l.V, cacheType)))
	}
	return n
}

func alignUp(n int64) int64 { return (n + pageAlign - 1) / pageAlign * pageAlign }

// Kinds counts the layers that keep all positions, a window, and a state.
func (s *Shape) Kinds() (full, window, state int) {
	for _, l := range s.Layers {
		switch {
		case l.State > 0:
			state++
		case l.K+l.V == 0:
		case l.Keeps > 0:
			window++
		default:
			full++
		}
	}
	return full, window, state
}

const (
	// batchTokens is Ollama's batch.
	batchTokens = 512
	// pageAlign is KVP_ALIGN of ggml-paged, in bytes.
	pageAlign = 4096
	// statePeriod is the distance of stored states of recurrent layers, in tokens.
	statePeriod = 2048
)

// check refuses a shape whose sizes cannot be those of a model, so that no product overflows.
func (s *Shape) check() error {
	rows := false
	for i, l := range s.Layers {
		if l.K < 0 || l.V < 0 || l.Keeps < 0 || l.State < 0 || l.K > elementsMax || l.V > elementsMax || l.Keeps > keepsMax || l.State > stateMax {
			return fmt.Errorf("layer %d has rows of %d and %d elements, a window of %d and a state of %d bytes", i, l.K, l.V, l.Keeps, l.State)
		}
		rows = rows || l.K+l.V > 0
	}
	switch n := s.RowBytes("f16"); {
	case !rows && s.StateBytes() > 0:
		return errors.New("all of its layers are recurrent: there is no K/V to keep, and such models are not tiered")
	case !rows:
		return errors.New("it does not say how large its K/V is")
	case n > math.MaxInt32 || s.StateBytes() > stateMax:
		return fmt.Errorf("a token would have %d bytes of K/V, and a sequence %d bytes of state", n, s.StateBytes())
	}
	return nil
}
