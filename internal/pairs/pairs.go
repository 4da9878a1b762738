// Package pairs lists the optional features of the patched releases, and their pairs. Tests
// that play random histories take their settings from here, so that no two features are on together
// for the first time at a user's.
package pairs

// Feature is an optional feature.
type Feature struct {
	Name string
	Env  []string // variables that turn the feature on, without those of a test's own folders
	// Tiered: the feature is a part of tiering.
	Tiered bool
	// Near: answers are near those of a stock server, and not the same.
	Near bool
}

// The features. Elastic memory has a limit, Lossy a remote tier.
var (
	Tiering    = &Feature{Name: "tiering", Tiered: true}
	Shifted    = &Feature{Name: "shifted", Tiered: true, Near: true, Env: []string{"OLLAMA_KV_TIER_REUSE=shifted"}}
	Elastic    = &Feature{Name: "elastic", Env: []string{"OLLAMA_KVCACHED=1"}}
	Paged      = &Feature{Name: "paged", Env: []string{"OLLAMA_PAGED_ATTN=1", "OLLAMA_PAGED_CHUNK_SIZE=64", "OLLAMA_FLASH_ATTENTION=1"}}
	RAM        = &Feature{Name: "RAM", Tiered: true, Env: []string{"OLLAMA_KV_TIER_RAM_GB=0.002"}}
	Compress   = &Feature{Name: "compress", Tiered: true, Env: []string{"OLLAMA_KV_TIER_COMPRESS=1"}}
	Lossy      = &Feature{Name: "lossy", Tiered: true, Near: true, Env: []string{"OLLAMA_KV_TIER_COLD_TYPE=q8_0", "OLLAMA_KV_CACHE_TYPE=f16"}}
	Multiuser  = &Feature{Name: "multiuser", Env: []string{"OLLAMA_MULTIUSER_CACHE=1"}}
	Slots      = &Feature{Name: "slots", Env: []string{"OLLAMA_NUM_PARALLEL=4"}}
	Embeddings = &Feature{Name: "embeddings"}
)

// Features are all features.
var Features = []*Feature{Tiering, Shifted, Elastic, Paged, RAM, Compress, Lossy, Multiuser, Slots, Embeddings}

// Pair is two features.
type Pair struct {
	A, B *Feature
	// Refused is a part of the error of a request for a model where the two do not go together.
	Refused string
}

// refused are the pairs that do not go together.
var refused = map[[2]*Feature]string{
	{Elastic, Paged}: "OLLAMA_KVCACHED and OLLAMA_PAGED_ATTN: paged attention has no cache tensors that could be elastic",
}

// All is each pair once.
func All() []Pair {
	var all []Pair
	for i, a := range Features {
		for _, b := range Features[i+1:] {
			all = append(all, Pair{A: a, B: b, Refused: refused[[2]*Feature{a, b}]})
		}
	}
	return all
}

// Has reports whether a feature is one of the two.
func (p Pair) Has(f *Feature) bool { return p.A == f || p.B == f }

// Tiered reports whether tiering is on.
func (p Pair) Tiered() bool { return p.A.Tiered || p.B.Tiered }

// Near reports whether answers are near those of a stock server, and not the same.
func (p Pair) Near() bool { return p.A.Near || p.B.Near }

// Env are the variables of both.
func (p Pair) Env() []string { return append(append([]string(nil), p.A.Env...), p.B.Env...) }

func (p Pair) String() string { return p.A.Name + "+" + p.B.Name }
