package testmodel

import "math"

// Recall describes the recall model of the package comment. RecallPrompts makes prompts.
type Recall struct {
	Layers int // 2 if 0: the first looks back by one token, each further layer looks up
	Heads  int // query heads, 4 if 0; an even number, because there are two key/value heads
}

const (
	recallContextMax = 1 << 20 // positions that codes can distinguish, see positionPairs
	recallKVHeads    = 2       // each carries half of a value code
	recallHeadDim    = valueCodeLen / recallKVHeads
	recallFFN        = 32 // weights are 0; some backends need a multiple of 32
	recallVocab      = 1 << (2*keyCodeBits + 1)
)

// WriteRecall writes the model as a GGUF file, as Write does.
func WriteRecall(path string, r Recall) error {
	setDefault(&r.Layers, 2)
	setDefault(&r.Heads, 4)
	s := Shape{
		Arch: "qwen3", Layers: r.Layers, Embed: recallEmbed, Heads: r.Heads, KVHeads: recallKVHeads,
		HeadDim: recallHeadDim, FFN: recallFFN, Vocab: recallVocab, Context: defaultContext,
	}
	l := qwen3(s)
	l.metadata["rope.freq_base"] = float32(recallRopeBase)
	r.setWeights(&l)
	return writeLayout(path, s, "kvtier test model, recall", l)
}

// setWeights puts the circuit into a layout of the qwen3 architecture.
func (r Recall) setWeights(l *layout) {
	weights := make(map[string]*handSet)
	for i := range l.matrices {
		m := &l.matrices[i]
		if m.norm != 0 {
			m.norm, m.zero = 1, 0
			continue
		}
		m.hand = &handSet{in: m.in, weights: make([]uint16, m.in*m.out)}
		weights[m.name] = m.hand
	}
	c := newCodebook()
	setEmbedding(weights[embeddingTensor], c)
	setOutput(weights[outputTensor], c)
	for i := range r.Layers {
		a := attention{
			query: weights[block(i, "attn_q")], key: weights[block(i, "attn_k")],
			value: weights[block(i, "attn_v")], output: weights[block(i, "attn_output")],
		}
		peak := lookUpPeak
		if i == 0 {
			peak = lookBackPeak
			r.lookBack(a)
		} else {
			r.lookUp(a)
		}
		gain := float32(math.Sqrt(peak / math.Sqrt(recallHeadDim)))
		for _, norm := range queryNorms(i, recallHeadDim, gain) {
			change(l.matrices, norm.name, func(m *matrix) { *m = norm })
		}
	}
}

// Offsets in the residual stream, after the constant dimension 0. The embedding sets the
// first two parts; the other two are 0 in the embedding and written by attention.
const (
	currentKey   = biasDim + 1
	currentValue = currentKey + keyCodeLen
	previousKey  = currentValue + valueCodeLen
	answerValue  = previousKey + keyCodeLen
	answerEnd    = answerValue + valueCodeLen
	recallEmbed  = (answerEnd + 31) / 32 * 32
)

// Squares of the residual stream's parts; all codes are ±1.
const (
	embeddedSquares = biasValue*biasValue + keyCodeLen + valueCodeLen
	lookedUpSquares = embeddedSquares + keyCodeLen
	answeredSquares = lookedUpSquares + valueCodeLen
)

// A base of 2^64 makes rotary pair i of a head of 64 turn by 4^-i per token,
// which floating point represents exactly, and leaves more than half of the
// pairs practically still: pair 16 turns by 2^-12 in a million tokens.
const (
	recallRopeBase = 1 << 64
	rotaryPairs    = recallHeadDim / 2
	// The slowest of these pairs makes a full turn in 2π·4^9 = 1.6 million tokens.
	positionPairs = 10
	firstKeyPair  = rotaryPairs - keyCodeLen/2
)

// Scores q·k/√d of a head at the right position. At other positions lookBack's scores are lower, by 15.7 one
// token away and by more farther away; lookUp's are lower by three quarters. A difference of ln(131072) =
// 11.8 would give all other positions together the same weight.
const (
	lookBackPeak = 32.0 * positionPairs
	lookUpPeak   = 40.0
)

// recallLogit is the logit of the right token; other tokens get up to an eighth.
const recallLogit = 24.0

// attention holds the four projections of a layer.
type attention struct{ query, key, value, output *handSet }

// lookBack copies the key code of the previous token into previousKey. The key is the same vector at all
// positions, and the query is that vector turned back by one token. So the score depends on the distance
// alone: the sum over the pairs of cos(4^-i · (distance - 1)) is greatest at distance 1.
func (r Recall) lookBack(l attention) {
	for pair := range positionPairs {
		sin, cos := math.Sincos(math.Pow(recallRopeBase, -float64(pair)/rotaryPairs))
		for head := range r.Heads {
			l.query.set(head*recallHeadDim+pair, biasDim, cos)
			l.query.set(head*recallHeadDim+pair+rotaryPairs, biasDim, -sin)
		}
		for kvHead := range recallKVHeads {
			l.key.set(kvHead*recallHeadDim+pair, biasDim, 1)
		}
	}
	toUnit := math.Sqrt(embeddedSquares / float64(recallEmbed))
	for i := range keyCodeLen {
		// Each kv head keeps the code at another place, so that mixing up heads shows.
		place := func(kvHead int) int { return kvHead*keyCodeLen + i }
		for kvHead := range recallKVHeads {
			l.value.set(kvHead*recallHeadDim+place(kvHead), currentKey+i, toUnit)
		}
		for head := range r.Heads {
			l.output.set(previousKey+i, head*recallHeadDim+place(r.kvHead(head)), 1/float64(r.Heads))
		}
	}
}

// lookUp copies the value code of the token whose previous token is the same as the current
// token into answerValue. Each kv head copies half of the code; the query heads of its group
// and all lookUp layers contribute equally.
func (r Recall) lookUp(l attention) {
	for i := range keyCodeLen {
		half, pair := i/(keyCodeLen/2), firstKeyPair+i%(keyCodeLen/2)
		dim := half*rotaryPairs + pair
		for head := range r.Heads {
			l.query.set(head*recallHeadDim+dim, currentKey+i, 1)
		}
		for kvHead := range recallKVHeads {
			l.key.set(kvHead*recallHeadDim+dim, previousKey+i, 1)
		}
	}
	toUnit := math.Sqrt(lookedUpSquares / float64(recallEmbed))
	for row := range valueCodeLen {
		l.value.set(row, currentValue+row, toUnit)
	}
	share := recallKVHeads / float64(r.Heads*(r.Layers-1))
	for head := range r.Heads {
		for i := range recallHeadDim {
			l.output.set(answerValue+r.kvHead(head)*recallHeadDim+i, head*recallHeadDim+i, share)
		}
	}
}

// kvHead is the key/value head of a query head.
func (r Recall) kvHead(head int) int { return head / (r.Heads / recallKVHeads) }

func setEmbedding(m *handSet, c codebook) {
	for token := range recallVocab {
		m.set(token, biasDim, biasValue)
		m.setCode(token, currentKey, c.keys[token], 1)
		m.setCode(token, currentValue, c.values[token], 1)
	}
}

// setOutput reads the answer, and keeps the model from ending it, as outputBias does.
func setOutput(m *handSet, c codebook) {
	vocabulary := newVocabulary(recallVocab)
	residualRMS := math.Sqrt(answeredSquares / float64(recallEmbed))
	for token := range recallVocab {
		m.setCode(token, answerValue, c.values[token], recallLogit*residualRMS/valueCodeLen)
		if !vocabulary.printable[token] {
			m.set(token, biasDim, suppressedLogit*residualRMS/biasValue)
		}
	}
}

// handSet holds the weights of a matrix, which are 0 until set.
type handSet struct {
	in      int
	weights []uint16
}

func (m *handSet) set(row, column int, weight float64) { m.weights[row*m.in+column] = half(weight) }

func (m *handSet) setCode(row, column int, c code, scale float64) {
	for i, sign := range c {
		m.set(row, column+i, float64(sign)*scale)
	}
}
