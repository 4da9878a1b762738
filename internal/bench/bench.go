package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/models"
	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// bench is one run of the command.
type bench struct {
	settings settings
	steps    *progress.Display
	dir      string // temporary: the model and the pages
	shape    testmodel.Shape
	model    lab.Model
	numCtx   int
	canDrop  bool // the page cache may be emptied
	seed     int64
	log      io.Writer // output of servers; nil: nowhere
	report   Report
}

const (
	contextSlack = 512 // room for the longest answer
	contextStep  = 1024
)

// benchmarks are the values of -only, in the order they run.
var benchmarks = []struct {
	name    string
	served  bool // needs a server with a model
	measure func(*bench, context.Context) error
}{
	{"ttft", true, (*bench).measureTTFT},
	{"large", false, (*bench).measureLarge},
	{"chat", true, (*bench).measureChat},
	{"cost", true, (*bench).measureCost},
	{"restore", true, (*bench).measureRestore},
	{"slots", true, (*bench).measureSlots},
	{"warm", true, (*bench).measureWarm},
	{"remote", true, (*bench).measureRemote},
	{"moved", true, (*bench).measureMoved},
	{"near", false, (*bench).measureNear},
	{"paged", true, (*bench).measurePaged},
	{"elastic", true, (*bench).measureElastic},
	{"store", false, (*bench).measureStore},
}

// buildDir is the default of -dir, and not /tmp, which is in memory on many systems.
func buildDir() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the working directory: %w", err)
	}
	repository, err := ollamasrc.FindRoot(wd)
	if err != nil {
		return "", err
	}
	return filepath.Join(repository, "build"), nil
}

// newBench makes a temporary folder in the folder that -dir names.
func newBench(s settings, steps *progress.Display) (*bench, error) {
	parent := s.dir
	if parent == "" {
		var err error
		if parent, err = buildDir(); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, fmt.Errorf("making a folder for the benchmarks: %w", err)
	}
	dir, err := os.MkdirTemp(parent, "bench-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for the benchmarks: %w", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("finding the absolute path of the benchmarks' folder: %w", err)
	}
	longest := max(slices.Max(s.sizes), s.costPrompt+s.costAnswer, s.restoreTokens, s.remoteTokens)
	return &bench{
		settings: s,
		steps:    steps,
		dir:      dir,
		shape:    s.shape,
		numCtx:   (longest + contextSlack + contextStep - 1) / contextStep * contextStep,
	}, nil
}

// run measures the parts that -only names.
func (b *bench) run(ctx context.Context) (err error) {
	defer func() {
		if removeErr := os.RemoveAll(b.dir); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("removing the benchmarks' folder: %w", removeErr))
		}
	}()
	if b.settings.log != "" {
		log, createErr := os.Create(b.settings.log)
		if createErr != nil {
			return fmt.Errorf("making the file for the output of servers: %w", createErr)
		}
		defer func() { err = errors.Join(err, log.Close()) }()
		b.log = log
	}
	b.canDrop = !b.settings.quick && measure.DropCaches() == nil
	b.report = Report{
		Schema:   schema,
		Machine:  measure.Describe(b.dir),
		Versions: Versions{Go: runtime.Version()},
		Settings: Settings{
			Model: fmt.Sprintf("%s, random weights, %d layers of %d, %d/%d heads of %d, f16",
				b.shape.Arch, b.shape.Layers, b.shape.Embed, b.shape.Heads, b.shape.KVHeads, b.shape.HeadDim),
			KVBytesPerToken: b.shape.KVBytesPerToken(),
			NumCtx:          b.numCtx,
			PageTokens:      lab.PageTokens,
			Slots:           1,
			Repetitions:     b.settings.repetitions,
			Pairs:           b.settings.pairs,
			Quick:           b.settings.quick,
		},
	}
	for _, benchmark := range benchmarks {
		if !slices.Contains(b.settings.only, benchmark.name) {
			continue
		}
		if benchmark.served && b.model.Name == "" {
			if b.model, err = models.Random(b.dir, "kvtier-bench", b.shape); err != nil {
				return err
			}
		}
		if err := benchmark.measure(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", benchmark.name, err)
		}
	}
	return nil
}

// start starts a server whose output -log keeps.
func (b *bench) start(ctx context.Context, options lab.Options) (*lab.Lab, error) {
	options.Log = b.log
	return lab.Start(ctx, options)
}

// prompt returns words of the given number of tokens that no earlier prompt had.
func (b *bench) prompt(tokens int) string {
	b.seed++
	text, err := testmodel.Prompt(b.shape, tokens, b.seed)
	if err != nil {
		panic(err) // a model of this shape was written before
	}
	return text
}

// repeatsMost is how often Ollama lets a model repeat a token before it ends the answer, without a last
// message. A model with random weights may do so at any time, unless its tokens are drawn.
const repeatsMost = 30

// ask sends a raw prompt.
func (b *bench) ask(ctx context.Context, l *lab.Lab, prompt string, tokens int) (lab.Answer, error) {
	return l.Ask(ctx, lab.Question{Prompt: prompt, Tokens: tokens, Raw: true, Drawn: tokens > repeatsMost})
}

// askShort sends a private prompt, of which nothing is stored.
func (b *bench) askShort(ctx context.Context, l *lab.Lab, prompt string) (lab.Answer, error) {
	return l.Ask(ctx, lab.Question{Prompt: prompt, Tokens: 1, Raw: true, Private: true})
}
