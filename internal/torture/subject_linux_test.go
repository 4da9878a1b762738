package torture

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ollama/ollama/api"
	"github.com/ollama/ollama/fs/ggml"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/soak"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// subject is a kind of server under test.
type subject struct {
	name string

	// start starts a server, which ends with the test. It skips the test if there is none.
	start func(t testing.TB, s setup) server

	// dense, windowed and hybrid are small models that the server tiers.
	dense, windowed, hybrid testmodel.Shape

	// adapters, valueTypes: the server tiers models with LoRA, and has a type of V of its own.
	adapters, valueTypes bool

	// windowBound and hybridBound bound log probabilities where a window or a state was
	// restored: its cells may be in another order, and batches may begin elsewhere. 0: the same
	// to the bit.
	windowBound, hybridBound float64
}

// setup says how a server is started.
type setup struct {
	model   testmodel.Shape
	gguf    string // the file of the model; others may have the same model
	adapter string // a LoRA file, "" for none
	root    string // of the pages; "": everything is computed
	keys    string // type of K, and of V unless values says another
	values  string
	plain   bool // without flash attention
	slots   int  // 1 if 0
	env     []string
	bound   float64 // of log probabilities; 0: the same to the bit
}

const (
	pageTokens = 16 // the smallest
	context4k  = 4096
	askMax     = 2 * time.Minute // in which an answer must come, also on a busy machine
	startMax   = 2 * time.Minute
	wholeTries = 5
	shownBest  = 5 // alternatives of each token that are compared
)

// server is a running server.
type server interface {
	// ask sends a prompt and returns the greedy answer. Several may ask at the same time.
	ask(ctx context.Context, p prompt, tokens int) (answer, error)

	// unload ends the engine as that of an idle model ends. All pages are stored when unload
	// returns. The next prompt finds a new engine.
	unload() error

	// crash kills all processes at once, and starts the server again.
	crash() error

	// refused is the number of pages that failed their check, by the server's log.
	refused() int

	// close ends the server.
	close() error
}

// answer is a greedy answer.
type answer struct {
	text     string
	tokens   []int32 // only of llama-server
	logprobs []api.Logprob
	restored int // tokens of the prompt that were not computed
}

// prompt is a prompt for each kind of server.
type prompt struct {
	tokens []int32
	text   string
}

// write returns a prompt of n tokens that begins unlike those of other seeds.
func write(t testing.TB, shape testmodel.Shape, n int, seed int64) prompt {
	text, err := testmodel.Prompt(shape, n, seed)
	require.NoError(t, err)
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(300 + (seed*7919+int64(i)*int64(i)*31+seed*int64(i)*17)%1000)
	}
	return prompt{tokens: tokens, text: text}
}

// then is a conversation that goes on after an answer.
func (p prompt) then(a answer, more prompt) prompt {
	return prompt{tokens: slices.Concat(p.tokens, a.tokens, more.tokens), text: p.text + a.text + more.text}
}

// rig is a server under test beside one that computes everything, for one setup.
type rig struct {
	t      testing.TB
	on     subject
	setup  setup
	root   string
	ours   server
	oracle server
	known  map[string]bool // files of pages that were there before
	asked  int
}

// newRig starts both servers. Without a root in the setup, the pages have a folder of their own.
func newRig(t testing.TB, on subject, s setup) *rig {
	if s.root == "" {
		s.root = filepath.Join(t.TempDir(), "pages")
	}
	if s.gguf == "" {
		s.gguf = modelOf(t, s.model)
	}
	r := &rig{t: t, on: on, setup: s, root: s.root, known: make(map[string]bool)}
	stock := s
	stock.root, stock.env = "", nil
	r.oracle = on.start(t, stock)
	r.ours = on.start(t, s)
	r.fresh()
	return r
}

// modelOf writes a model.
func modelOf(t testing.TB, shape testmodel.Shape) string {
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, testmodel.Write(path, shape.WithDefaults()))
	return path
}

// close ends both servers before the test does.
func (r *rig) close() {
	require.NoError(r.t, r.oracle.close())
	require.NoError(r.t, r.ours.close())
}

// ask asks the server under test.
func (r *rig) ask(p prompt, tokens int) answer {
	r.t.Helper()
	return askOf(r.t, r.ours, p, tokens)
}

func askOf(t testing.TB, s server, p prompt, tokens int) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), askMax)
	defer cancel()
	a, err := s.ask(ctx, p, tokens)
	require.NoError(t, err)
	return a
}

// chat is a conversation that is stored.
type chat struct {
	prompt prompt
	tokens int         // of an answer
	want   [][]logprob // the answers that are right: one, or two where the engine holds the beginning
	pages  []pageFile  // in order
}

// computed returns a prompt's answer of the server that computes everything.
func (r *rig) computed(p prompt, tokens int) answer {
	r.t.Helper()
	askOf(r.t, r.oracle, write(r.t, r.setup.model, 40, 999_999), 1) // takes the slot
	return askOf(r.t, r.oracle, p, tokens)
}

// store has the server compute and store a conversation, and compares the answer. A unload
// follows, so that the next prompt finds an empty engine.
func (r *rig) store(p prompt, tokens int) *chat {
	r.t.Helper()
	c := &chat{prompt: p, tokens: tokens, want: [][]logprob{r.computed(p, tokens).logprobs}}
	r.fresh() // others may have stored pages below this root
	r.require(c, r.ask(p, tokens), "the first answer")
	require.NoError(r.t, r.ours.unload())
	c.pages = r.fresh()
	return c
}

// converse stores a conversation of two turns, as models need it that go on only where a
// sequence ended. The chat is the second turn.
func (r *rig) converse(first, more prompt, tokens int) *chat {
	r.t.Helper()
	held := r.computed(first, tokens)
	second := first.then(held, more)
	after := askOf(r.t, r.oracle, second, tokens) // the slot holds the first turn
	c := &chat{prompt: second, tokens: tokens, want: [][]logprob{after.logprobs, r.computed(second, tokens).logprobs}}
	r.fresh()
	r.require(&chat{want: [][]logprob{held.logprobs}}, r.ask(first, tokens), "the first turn")
	require.NoError(r.t, r.ours.unload())
	c.pages = r.fresh()
	return c
}

// again asks for a stored conversation and requires a right answer. It returns the number of
// tokens that were not computed.
func (r *rig) again(c *chat, why string) int {
	r.t.Helper()
	a := r.ask(c.prompt, c.tokens)
	r.require(c, a, why)
	return a.restored
}

// whole asks for a stored conversation until n tokens of it come back: a busy machine may give a
// restore up and compute. Each answer must be right.
func (r *rig) whole(c *chat, n int, why string) {
	r.t.Helper()
	restored := 0
	for range wholeTries {
		if restored = r.again(c, why); restored >= n {
			return
		}
		require.NoError(r.t, r.ours.unload())
	}
	require.GreaterOrEqual(r.t, restored, n, why)
}

// require requires one of the right answers.
func (r *rig) require(c *chat, a answer, why string) {
	r.t.Helper()
	require.NoError(r.t, r.wrong(c, a), why)
	r.asked++
}

// wrong returns an error unless an answer is one of the right ones.
func (r *rig) wrong(c *chat, a answer) error {
	var reasons []string
	for _, want := range c.want {
		err := soak.Same(want, a.logprobs)
		if err != nil && r.setup.bound > 0 {
			_, err = soak.Within(want, a.logprobs, r.setup.bound)
		}
		if err == nil {
			return nil
		}
		reasons = append(reasons, err.Error())
	}
	return fmt.Errorf("another answer than the server that computes everything: %s", strings.Join(reasons, "; or "))
}

type logprob = api.Logprob

// hybrid is the setup of a model with recurrent layers.
func hybrid(on subject) setup { return setup{model: on.hybrid, bound: on.hybridBound} }

// windowed is that of a model with layers of a window.
func windowed(on subject) setup { return setup{model: on.windowed, bound: on.windowBound} }

// streams has slots restored through files that do not exist, where FUSE works.
func streams(t testing.TB) []string {
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Log("FUSE cannot be used: files in memory instead of streams")
		return nil
	}
	require.NoError(t, device.Close())
	return []string{"KVTIER_LLAMA_FILES=parts"}
}

// adapterOf writes a LoRA of rank 1 that changes K and V of all layers.
func adapterOf(t testing.TB, shape testmodel.Shape, seed uint64) string {
	shape = shape.WithDefaults()
	rng := rand.New(rand.NewPCG(seed, 1))
	var tensors []*ggml.Tensor
	for layer := range shape.Layers {
		for _, of := range []string{"attn_k", "attn_v"} {
			name := fmt.Sprintf("blk.%d.%s.weight", layer, of)
			tensors = append(tensors,
				randomTensor(rng, name+".lora_a", uint64(shape.Embed), 1),
				randomTensor(rng, name+".lora_b", 1, uint64(shape.KVHeads*shape.HeadDim)))
		}
	}
	path := filepath.Join(t.TempDir(), "adapter.gguf")
	require.NoError(t, testmodel.WriteFile(path, ggml.KV{
		"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": float32(1),
	}, tensors))
	return path
}

// randomTensor is a matrix of f32 of a LoRA, the inner dimension first.
func randomTensor(rng *rand.Rand, name string, shape ...uint64) *ggml.Tensor {
	weights := make([]byte, 0, 4*shape[0]*shape[1])
	for range shape[0] * shape[1] {
		weights = binary.LittleEndian.AppendUint32(weights, math.Float32bits(float32(rng.NormFloat64())/4))
	}
	return &ggml.Tensor{Name: name, Kind: uint32(ggml.TensorTypeF32), Shape: shape, WriterTo: bytes.NewReader(weights)}
}
