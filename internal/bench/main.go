package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/models"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// stockEnv names an unpatched ollama executable.
const stockEnv = "KVTIER_STOCK_OLLAMA"

func main() { show.Main(run) }

// settings are the command line.
type settings struct {
	stock       string
	out         string
	dir         string
	log         string
	show        string
	only        []string
	sizes       []int
	repetitions int
	pairs       int
	quick       bool

	shape         testmodel.Shape
	costPrompt    int
	costAnswer    int
	restoreTokens int
	remoteTokens  int
	remoteMBs     []int
	storeMiB      int
	storePages    []int
}

// Lengths are in tokens.
const (
	defaultSizes       = "1024,4096,8192,16384"
	defaultRepetitions = 3
	defaultPairs       = 15
	costPrompt         = 4096
	costAnswer         = 256
	decodePrompt       = 64
	restoreTokens      = 16384 // a multiple of the page size: tails come and go
	remoteTokens       = 4096
)

// trainedContext is the context length in the model's file: the largest possible.
const trainedContext = 256 << 10

// The sizes of -quick, which runs every part and yields no figure of use.
const (
	quickTokens  = 300
	quickAnswer  = 8
	quickRestore = 512
	quickRemote  = 512
)

// shapes are the values of -model. 1b has the shape of Llama 3.2 1B.
var shapes = map[string]testmodel.Shape{
	"small": {Context: trainedContext, Seed: 1},
	"1b":    {Layers: 16, Embed: 2048, Heads: 32, KVHeads: 8, HeadDim: 64, FFN: 8192, Context: trainedContext, Seed: 1},
}

var quickShape = testmodel.Shape{Layers: 2, Embed: 128, Heads: 4, KVHeads: 2, HeadDim: 32, Context: trainedContext, Seed: 1}

func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{
		costPrompt: costPrompt, costAnswer: costAnswer, restoreTokens: restoreTokens,
		remoteTokens: remoteTokens, remoteMBs: []int{1000, 300, 100, 30, 10, 3, 1},
		storeMiB: 1024, storePages: []int{10_000, 1_000_000}, // a million tiny pages take 12 GB and minutes
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var model, only, sizes string
	flags.StringVar(&s.stock, "stock", os.Getenv(stockEnv), "unpatched ollama `executable` to compare with; default $"+stockEnv+", else the patched one with the tier off")
	flags.StringVar(&s.out, "o", "", "write every measured value to this JSON `file`; parts that -only leaves out stay in the file, if measured alike")
	flags.StringVar(&s.dir, "dir", "", "`folder` for the model and the pages, on a disk; default build/ in the checkout")
	flags.StringVar(&s.log, "log", "", "`file` for the output of all servers")
	flags.StringVar(&s.show, "show", "", "measure nothing, print the tables of this JSON `file`")
	flags.StringVar(&model, "model", "small", "`size` of the model, with random weights: small, for CPUs, or 1b, of 2 GB")
	flags.StringVar(&only, "only", "", "comma-separated `benchmarks` to run: "+strings.Join(names(), ", ")+"; default all")
	flags.StringVar(&sizes, "sizes", defaultSizes, "prompt `lengths` of ttft, in tokens")
	flags.IntVar(&s.repetitions, "n", defaultRepetitions, fmt.Sprintf("repetitions of ttft; of restore there are %d times as many", restoresPerRepetition))
	flags.IntVar(&s.pairs, "pairs", defaultPairs, fmt.Sprintf("pairs of cost's prompts; of answers there are %d times as many", decodesPerPrefill))
	flags.IntVar(&s.restoreTokens, "restore-tokens", restoreTokens, "`length` of the prompt of restore, slots and warm, in tokens")
	flags.BoolVar(&s.quick, "quick", false, "see in seconds whether it works; the figures mean nothing")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q; every setting is a flag, see -help", flags.Arg(0))
	}
	shape, ok := shapes[model]
	if !ok {
		return s, fmt.Errorf("-model %s: there is no such model, only small and 1b", model)
	}
	s.shape = shape
	if s.quick {
		s.shape, sizes = quickShape, strconv.Itoa(quickTokens)
		s.costPrompt, s.costAnswer, s.restoreTokens = quickTokens, quickAnswer, quickRestore
		s.repetitions, s.pairs = 1, 1
		s.remoteTokens, s.remoteMBs = quickRemote, []int{100}
		s.storeMiB, s.storePages = 64, []int{500, 1000}
	}
	s.shape = s.shape.WithDefaults()
	return s, s.fillIn(only, sizes)
}

// fillIn reads the lists and checks the numbers.
func (s *settings) fillIn(only, sizes string) error {
	s.only = names()
	if only != "" {
		s.only = strings.Split(only, ",")
	}
	for _, name := range s.only {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("-only %s: there is no benchmark %q, only %s", only, name, strings.Join(names(), ", "))
		}
	}
	for number := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(number)
		if err != nil || n < 2 || n > s.shape.Context {
			return fmt.Errorf("-sizes %s: %q is not a number of tokens from 2 to %d", sizes, number, s.shape.Context)
		}
		s.sizes = append(s.sizes, n)
	}
	if n := s.restoreTokens; n < lab.PageTokens || n > s.shape.Context {
		return fmt.Errorf("-restore-tokens %d: want %d to %d", n, lab.PageTokens, s.shape.Context)
	}
	if s.repetitions < 1 || s.pairs < 1 {
		return fmt.Errorf("-n %d, -pairs %d: at least one repetition is needed", s.repetitions, s.pairs)
	}
	if s.stock != "" {
		if _, err := os.Stat(s.stock); err != nil {
			return fmt.Errorf("looking for the unpatched Ollama that -stock or %s names: %w", stockEnv, err)
		}
	}
	return nil
}

// parts are the values of -only, in the order they run. A part returns nil where the machine cannot
// run it.
var parts = []struct {
	name    string
	served  bool // needs a model
	measure func(context.Context, *rig, settings) (any, error)
}{
	{"ttft", true, measureTTFT},
	{"large", false, measureLarge},
	{"chat", true, measureChat},
	{"cost", true, measureCost},
	{"restore", true, measureRestore},
	{"slots", true, measureSlots},
	{"warm", true, measureWarm},
	{"remote", true, measureRemote},
	{"moved", true, measureMoved},
	{"near", false, measureNear},
	{"paged", true, measurePaged},
	{"elastic", true, measureElastic},
	{"store", false, measureStore},
}

// names lists the parts.
func names() []string {
	var all []string
	for _, p := range parts {
		all = append(all, p.name)
	}
	return all
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if s.show != "" {
		report, err := load(s.show)
		if err == nil {
			report.print(stdout)
		}
		return err
	}
	steps := progress.New(stderr, show.StepNames)
	report, err := measureAll(ctx, s, steps)
	steps.Close()
	if err != nil {
		return err
	}
	report.print(stdout)
	if s.out == "" {
		return nil
	}
	if old, err := load(s.out); err == nil {
		report.keep(old)
	}
	return report.save(s.out)
}

// measureAll measures the parts that -only names, in a temporary folder.
func measureAll(ctx context.Context, s settings, steps *progress.Display) (report *Report, err error) {
	dir, err := makeDir(s.dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	report = &Report{
		Schema:   schema,
		Machine:  measure.Describe(dir),
		Versions: Versions{Go: runtime.Version()},
		Settings: Settings{
			Model: fmt.Sprintf("%s, random weights, %d layers of %d, %d/%d heads of %d, f16",
				s.shape.Arch, s.shape.Layers, s.shape.Embed, s.shape.Heads, s.shape.KVHeads, s.shape.HeadDim),
			KVBytesPerToken: s.shape.KVBytesPerToken(),
			NumCtx:          contextFor(max(slices.Max(s.sizes), s.costPrompt+s.costAnswer, s.restoreTokens, s.remoteTokens)),
			PageTokens:      lab.PageTokens,
			Slots:           1,
			Repetitions:     s.repetitions,
			Pairs:           s.pairs,
			Quick:           s.quick,
		},
	}
	r := &rig{
		steps: steps, dir: dir, canDrop: !s.quick && measure.DropCaches() == nil, versions: &report.Versions, binary: s.stock,
		shape: s.shape, numCtx: report.Settings.NumCtx,
	}
	if s.log != "" {
		log, err := os.Create(s.log)
		if err != nil {
			return nil, fmt.Errorf("making the file for the output of servers: %w", err)
		}
		defer log.Close()
		r.log = log
	}
	for _, p := range parts {
		if !slices.Contains(s.only, p.name) {
			continue
		}
		if p.served && r.model.Name == "" {
			if r.model, err = models.Random(dir, "kvtier-bench", r.shape); err != nil {
				return nil, err
			}
		}
		result, err := p.measure(ctx, r, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		if result != nil {
			report.field(p.name).Set(reflect.ValueOf(result))
		}
	}
	return report, nil
}

// makeDir makes a temporary folder in the folder that -dir names, or else in build/.
func makeDir(parent string) (dir string, err error) {
	if parent == "" {
		_, dir, err = ollamasrc.TempDir("bench-")
		return dir, err
	}
	parent, err = filepath.Abs(parent)
	if err == nil {
		err = os.MkdirAll(parent, 0o755)
	}
	if err == nil {
		dir, err = os.MkdirTemp(parent, "bench-")
	}
	if err != nil {
		return "", fmt.Errorf("making a folder for the benchmarks: %w", err)
	}
	return dir, nil
}
