package e2e

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/semver"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// These tests show that each model of package testmodel runs on stock Ollama's own engine,
// and that its answers are worth comparing.

const (
	modelTokens = 8   // tokens of an answer
	modelPrompt = 300 // tokens, several windows or chunks
	topLogprobs = 20
	imageTag    = "[img-0]" // the place of an image in a raw prompt
	// differ is the least distance of log probabilities of different prompts. Log
	// probabilities of one prompt are up to 0.002 apart when part of the prompt was in the
	// cache.
	differ = 0.003
)

var (
	// engineLine is the server's log line when it starts a runner.
	engineLine = regexp.MustCompile(`cmd="[^"]* runner (--ollama-engine)? ?--model`)
	// tensorLine is a runner's log line for a tensor that the engine uses.
	tensorLine = regexp.MustCompile(`msg="found tensor" name=(\S+)`)
)

// seesImages are the models that take images.
var seesImages = []string{"gemma3-vision", "gemma4-vision", "mistral3", "mllama"}

func TestModels(t *testing.T) {
	s := startModels(t)
	for _, arch := range testmodel.Architectures() {
		t.Run(arch, func(t *testing.T) {
			m := s.load(t, arch)
			m.requireOwnEngine()
			m.requireAllTensorsTaken()
			first := m.requireSameCold(m.prompt(modelPrompt, 1))
			require.Equal(t, modelPrompt, first.PromptEvalCount)
			requireLively(t, first)
			m.requireContextMatters()
		})
	}
}

func TestModelsSeeImages(t *testing.T) {
	s := startModels(t)
	for _, arch := range seesImages {
		t.Run(arch, func(t *testing.T) {
			m := s.load(t, arch)
			text := m.prompt(20, 1) + imageTag + m.prompt(20, 2)
			blank := m.ask(text, picture(t, 0))
			noise := m.ask(text, picture(t, 1))
			other := m.ask(text, picture(t, 2))
			requireLively(t, blank)
			requireDiffer(t, m.ask(m.prompt(20, 1)+m.prompt(20, 2)), blank, "with an image and without")
			requireDiffer(t, blank, noise, "a blank image and noise")
			requireDiffer(t, noise, other, "noise and other noise")
			m.requireSameCold(text, picture(t, 1))
		})
	}
}

// modelServer is a server for models, one at a time.
type modelServer struct{ *server }

func startModels(t *testing.T) modelServer {
	t.Helper()
	return modelServer{startPlain(t, "OLLAMA_NEW_ENGINE=1", "OLLAMA_NUM_PARALLEL=1", "OLLAMA_MAX_LOADED_MODELS=1", "OLLAMA_DEBUG=2")}
}

// besideStock starts a server with tiering, and one without, for models one at a time.
func besideStock(t *testing.T, env ...string) (plain, tiered modelServer) {
	t.Helper()
	env = append([]string{"OLLAMA_NEW_ENGINE=1", "OLLAMA_MAX_LOADED_MODELS=1", "OLLAMA_NUM_PARALLEL=1"}, env...)
	return modelServer{startPlain(t, env...)}, modelServer{start(t, env...)}
}

// loadedModel is a model on a server, for one test.
type loadedModel struct {
	*server
	shape testmodel.Shape
	gguf  string
	mark  int // length of the log before the model was first loaded
	// forgets: upstream itself loses the state where a slot goes on, as lfm2 before v0.17.1.
	forgets bool
}

func (s modelServer) load(t *testing.T, arch string) loadedModel {
	t.Helper()
	return s.loadChanged(t, arch, func(string) {})
}

// loadChanged loads a model whose file was changed first.
func (s modelServer) loadChanged(t *testing.T, arch string, change func(gguf string)) loadedModel {
	t.Helper()
	on := *s.server
	on.t = t
	version := on.skipWithout(arch)
	m := loadedModel{
		server: &on, shape: testmodel.Shape{Arch: arch, Seed: 1}.WithDefaults(),
		gguf:    filepath.Join(t.TempDir(), "model.gguf"),
		forgets: arch == "lfm2" && semver.Compare("v"+version, "v0.17.1") < 0,
	}
	require.NoError(t, testmodel.Write(m.gguf, m.shape))
	change(m.gguf)
	m.create(arch, m.gguf)
	t.Cleanup(m.unload)
	m.mark = m.LogMark()
	return m
}

// skipWithout skips a test if this Ollama lacks the architecture, and returns Ollama's
// version.
func (s *server) skipWithout(arch string) string {
	s.t.Helper()
	version, err := s.API().Version(s.context())
	require.NoError(s.t, err)
	if since := testmodel.Since(arch); semver.Compare("v"+version, since) < 0 {
		s.t.Skipf("Ollama %s has no %s; %s is the first that does", version, arch, since)
	}
	return version
}

func (m loadedModel) unload() {
	m.t.Helper()
	require.NoError(m.t, m.Unload(m.context(), m.shape.Arch))
}

func (m loadedModel) prompt(tokens int, seed int64) string {
	m.t.Helper()
	text, err := testmodel.Prompt(m.shape, tokens, seed)
	require.NoError(m.t, err)
	return text
}

// ask sends a raw prompt, with images, and reads a greedy answer.
func (m loadedModel) ask(prompt string, images ...[]byte) ollamatest.Result {
	m.t.Helper()
	result, err := m.Generate(m.context(), requestFor(prompt, modelTokens, m.withImages(images), func(r *ollamatest.Request) {
		r.TopLogprobs = topLogprobs
	}))
	require.NoError(m.t, err)
	require.Len(m.t, result.Logprobs, modelTokens)
	return result
}

// withImages makes a request one for this model, with images.
func (m loadedModel) withImages(images [][]byte) func(*ollamatest.Request) {
	return func(r *ollamatest.Request) {
		r.Model = m.shape.Arch
		for _, data := range images {
			r.Images = append(r.Images, data)
		}
	}
}

// requireOwnEngine checks that the model does not run on llama.cpp's runner, whose caches
// are different.
func (m loadedModel) requireOwnEngine() {
	m.t.Helper()
	m.ask("The")
	starts := engineLine.FindAllStringSubmatch(strings.ReplaceAll(m.Logs()[m.mark:], `\"`, ""), -1)
	require.NotEmpty(m.t, starts, "no runner was started")
	for _, start := range starts {
		require.Equal(m.t, "--ollama-engine", start[1], start[0])
	}
}

// requireSameCold checks that two processes with empty caches compute the same bits, and
// returns their answer. In mllama's cache even text before an image depends on the image of
// its batch.
func (m loadedModel) requireSameCold(prompt string, images ...[]byte) ollamatest.Result {
	m.t.Helper()
	m.unload()
	first := m.ask(prompt, images...)
	m.unload()
	requireSame(m.t, answer{Result: first}, answer{Result: m.ask(prompt, images...)}, "the same prompt in a new process")
	return first
}

// requireAllTensorsTaken checks that the engine uses every tensor: an optional tensor of a
// wrong name would be ignored silently.
func (m loadedModel) requireAllTensorsTaken() {
	m.t.Helper()
	var taken, written []string
	for _, line := range tensorLine.FindAllStringSubmatch(m.Logs()[m.mark:], -1) {
		taken = append(taken, line[1])
	}
	f, err := os.Open(m.gguf)
	require.NoError(m.t, err)
	defer f.Close()
	model, err := ggml.Decode(f, -1)
	require.NoError(m.t, err)
	for _, tensor := range model.Tensors().Items() {
		written = append(written, tensor.Name)
	}
	require.Subset(m.t, taken, written)
}

// requireContextMatters: one word changes tokens long after it.
func (m loadedModel) requireContextMatters() {
	m.t.Helper()
	words := strings.Fields(m.prompt(modelPrompt, 2))
	m.unload()
	base := m.ask(" " + strings.Join(words, " "))
	for _, at := range []int{5, modelPrompt / 2, modelPrompt - 30} {
		other := slices.Clone(words)
		other[at] = words[at+1]
		require.NotEqual(m.t, words[at], other[at], "a prompt that happens to repeat a word")
		m.unload()
		requireDiffer(m.t, base, m.ask(" "+strings.Join(other, " ")), fmt.Sprintf("with another word %d", at))
	}
}

// requireLively checks that log probabilities are neither all equal nor dominated by one
// token.
func requireLively(t *testing.T, r ollamatest.Result) {
	t.Helper()
	for i, token := range r.Logprobs {
		require.Len(t, token.TopLogprobs, topLogprobs)
		best, last := token.TopLogprobs[0].Logprob, token.TopLogprobs[topLogprobs-1].Logprob
		for _, top := range token.TopLogprobs {
			require.False(t, math.IsNaN(top.Logprob) || math.IsInf(top.Logprob, 0), "token %d", i)
		}
		require.Less(t, best, math.Log(0.9), "token %d is certain", i)
		require.Greater(t, best, math.Log(0.002), "token %d is as good as any", i)
		require.Greater(t, best-last, 0.2, "the best %d for token %d are alike", topLogprobs, i)
	}
	require.Equal(t, "length", r.DoneReason, "the model ended its answer by itself")
}

// requireDiffer checks that the first token's log probabilities differ by more
// than rounding.
func requireDiffer(t *testing.T, a, b ollamatest.Result, what string) {
	t.Helper()
	of := make(map[string]float64)
	for _, top := range a.Logprobs[0].TopLogprobs {
		of[top.Token] = top.Logprob
	}
	most := 0.0
	for _, top := range b.Logprobs[0].TopLogprobs {
		logprob, ok := of[top.Token]
		if !ok {
			return // the token is not even among the best of the other
		}
		most = max(most, math.Abs(top.Logprob-logprob))
	}
	require.Greater(t, most, differ, what)
}

// picture is a small PNG file: one color, or noise of that seed.
func picture(t *testing.T, seed uint64) []byte {
	t.Helper()
	const width, height = 56, 42
	random := rand.New(rand.NewPCG(seed, 0))
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			c := color.RGBA{R: 90, G: 120, B: 200, A: 255}
			if seed != 0 {
				bits := random.Uint32()
				c.R, c.G, c.B = uint8(bits), uint8(bits>>8), uint8(bits>>16)
			}
			img.SetRGBA(x, y, c)
		}
	}
	var file bytes.Buffer
	require.NoError(t, png.Encode(&file, img))
	return file.Bytes()
}
