package testmodel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

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

// A code is a vector of ±1 that stands for a token. Any two codes of a family have a cosine
// of at most 2^(-(bits-1)/2); negative cosines are not bounded, because the family has the
// opposite of each code. Elements of ±1 are exact in f16 and q8_0.
type code []int8

// Key codes, by which tokens are looked up, and value codes, which carry and name tokens. A key code must fit
// into the part of a head that does not rotate; the family has exactly one key code per token.
const (
	keyCodeBits   = 5
	valueCodeBits = 7
	keyCodeLen    = 1 << keyCodeBits   // 32, cosines up to 1/4
	valueCodeLen  = 1 << valueCodeBits // 128, cosines up to 1/8
)

// field is GF(2^bits) as polynomials over GF(2), modulo an irreducible one.
type field struct {
	bits    int
	modulus int
}

var (
	keyField   = field{keyCodeBits, 0b100101}     // x^5 + x^2 + 1
	valueField = field{valueCodeBits, 0b10000011} // x^7 + x + 1
)

func (f field) multiply(a, b int) int {
	product := 0
	for ; b != 0; b >>= 1 {
		if b&1 != 0 {
			product ^= a
		}
		a <<= 1
		if a>>f.bits != 0 {
			a ^= f.modulus
		}
	}
	return product
}

// trace maps half of the field to 0 and half to 1, linearly.
func (f field) trace(a int) int {
	sum := 0
	for range f.bits {
		sum ^= a
		a = f.multiply(a, a)
	}
	return sum
}

// code returns the n-th code: ±(-1)^Tr(ax + bx³) for each x of the field. The codes are R. Gold's sequences
// ("Maximal recursive sequences with 3-valued recursive cross-correlation functions", 1968): for an odd
// number of bits, the numbers of places where two of them agree and differ are equal up to 2^((bits-1)/2).
func (f field) code(n int) code {
	size := 1 << f.bits
	a, b, sign := n%size, n/size%size, n/size/size
	c := make(code, size)
	for x := range c {
		cube := f.multiply(x, f.multiply(x, x))
		c[x] = int8(1 - 2*(sign^f.trace(f.multiply(a, x)^f.multiply(b, cube))))
	}
	return c
}

// codebook gives each token its codes.
type codebook struct{ keys, values []code }

func newCodebook() codebook {
	random := rand.New(rand.NewPCG(0, 0))
	draw := func(f field) []code {
		drawn := make([]code, recallVocab)
		for token, n := range random.Perm(2 << (2 * f.bits))[:recallVocab] { // of all codes of the family
			drawn[token] = f.code(n)
		}
		return drawn
	}
	return codebook{keys: draw(keyField), values: draw(valueField)}
}

// RecallAnswerTokens is the number of tokens of an answer: the first tests the prompt, the
// others test that each generated token finds the next.
const RecallAnswerTokens = 4

// RecallNeedlesMax bounds the needles of a prompt, whose words may not occur elsewhere in the prompt.
const RecallNeedlesMax = 64

// RecallQuestion is a prompt and the answer of a Recall model.
type RecallQuestion struct {
	Prompt   string // for a raw request; ends in the key
	Answer   string // RecallAnswerTokens tokens
	Tokens   int    // tokens of Prompt
	Distance int    // tokens between the needle's key and the key at the end
}

// RecallPrompts hides one needle at each of the given positions of a text: a key, which is a
// word that occurs nowhere else, and its answer of more such words. RecallPrompts returns
// one question per needle. All prompts have the same text and end with the needle's key,
// `tokens` tokens in all. The model goes on with the answer.
//
// The first usable position is 1: the model takes the token at position 0, which has no predecessor, for its
// own successor. Equal arguments give equal words; with fewer tokens, the text is a prefix of the longer one.
func RecallPrompts(seed int64, tokens int, positions ...int) ([]RecallQuestion, error) {
	if len(positions) == 0 || len(positions) > RecallNeedlesMax {
		return nil, fmt.Errorf("making a recall prompt: %d needles, must be from 1 to %d", len(positions), RecallNeedlesMax)
	}
	const needleTokens = 1 + RecallAnswerTokens
	last, end := tokens-1-needleTokens, 1
	for _, position := range slices.Sorted(slices.Values(positions)) {
		if position < end || position > last {
			return nil, fmt.Errorf("making a recall prompt: a needle at %d in %d tokens, must be from %d to %d", position, tokens, end, last)
		}
		end = position + needleTokens
	}
	words := wholeWords(newVocabulary(recallVocab))
	random := rand.New(rand.NewPCG(uint64(seed), 1))
	random.Shuffle(len(words), func(i, j int) { words[i], words[j] = words[j], words[i] })

	needles, filler := words[:len(positions)*needleTokens], words[len(positions)*needleTokens:]
	text := make([]string, tokens-1)
	for i := range text {
		text[i] = filler[random.IntN(len(filler))]
	}
	for i, position := range positions {
		copy(text[position:], needles[i*needleTokens:][:needleTokens])
	}

	haystack := strings.Join(text, "")
	questions := make([]RecallQuestion, len(positions))
	for i, position := range positions {
		needle := text[position:][:needleTokens]
		questions[i] = RecallQuestion{
			Prompt: haystack + needle[0], Answer: strings.Join(needle[1:], ""),
			Tokens: tokens, Distance: tokens - 1 - position,
		}
	}
	return questions, nil
}
