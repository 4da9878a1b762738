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

	"github.com/kvtier/kvtier/internal/bench/evict"
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

// settings are the command line. Lengths are in tokens.
type settings struct {
	stock       string
	out         string
	dir         string
	log         string
	show        string
	plot        string
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
	trace         string
}

// trainedContext is the context length in the model's file: the largest possible.
const trainedContext = 256 << 10

// The sizes of -quick, which runs every part and yields no figure of use.
const (
	quickTokens  = 300
	quickAnswer  = 8
	quickRestore = 512
)

// shapes are the values of -model. 1b has the shape of Llama 3.2 1B, 8b-kv the K/V of an 8B model and
// few weights, so that computing ends in time.
var shapes = map[string]testmodel.Shape{
	"small": {Context: trainedContext, Seed: 1},
	"1b":    {Layers: 16, Embed: 2048, Heads: 32, KVHeads: 8, HeadDim: 64, FFN: 8192, Context: trainedContext, Seed: 1},
	"8b-kv": {Layers: 32, Embed: 256, Heads: 8, KVHeads: 8, HeadDim: 128, Context: trainedContext, Seed: 1},
}

var quickShape = testmodel.Shape{Layers: 2, Embed: 128, Heads: 4, KVHeads: 2, HeadDim: 32, Context: trainedContext, Seed: 1}

func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{
		costPrompt: 4096, costAnswer: 256,
		remoteTokens: 4096, remoteMBs: []int{1000, 300, 100, 30, 10, 3, 1},
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
	flags.StringVar(&s.plot, "plot", "", "with -show: draw ttft into this SVG `file` instead")
	flags.StringVar(&model, "model", "small", "`size` of the model, with random weights: small, for CPUs, 1b, of 2 GB, or 8b-kv, with the K/V of 8B parameters")
	flags.StringVar(&only, "only", "", "comma-separated `benchmarks` to run: "+strings.Join(names(), ", ")+"; default all. "+
		"Behind \"-only evict\" may stand a trace: a file of JSON lines, also packed by gzip, agents or home; default "+evict.Default)
	flags.StringVar(&sizes, "sizes", "1024,4096,8192,16384", "prompt `lengths` of ttft, in tokens")
	flags.IntVar(&s.repetitions, "n", 3, fmt.Sprintf("repetitions of most parts; restore and store restore %d times as often", restoresPerRepetition))
	flags.IntVar(&s.pairs, "pairs", 15, fmt.Sprintf("pairs of cost's prompts; of answers there are %d times as many", decodesPerPrefill))
	flags.IntVar(&s.restoreTokens, "restore-tokens", 16384, "`length` of the prompt of restore, slots and warm, in tokens") // a multiple of the page size: tails come and go
	flags.BoolVar(&s.quick, "quick", false, "see in seconds whether it works; the figures mean nothing")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if s.trace = flags.Arg(0); flags.NArg() > 1 || s.trace != "" && only != "evict" {
		return s, fmt.Errorf("unexpected argument %q; every setting is a flag, but for the trace of -only evict, see -help", flags.Arg(flags.NArg()-1))
	}
	shape, ok := shapes[model]
	if !ok {
		return s, fmt.Errorf("-model %s: there is no such model, only small, 1b and 8b-kv", model)
	}
	s.shape = shape
	if s.quick {
		s.shape, sizes = quickShape, strconv.Itoa(quickTokens)
		s.costPrompt, s.costAnswer, s.restoreTokens = quickTokens, quickAnswer, quickRestore
		s.repetitions, s.pairs = 1, 1
		s.remoteTokens, s.remoteMBs = quickRestore, []int{100}
		s.storeMiB, s.storePages = 64, []int{500, 1000}
	}
	s.shape = s.shape.WithDefaults()
	return s, s.check(only, sizes)
}

// check reads the lists and checks the numbers.
func (s *settings) check(only, sizes string) (err error) {
	if s.only, err = show.Chosen(only, names()); err != nil {
		return err
	}
	if s.sizes, err = show.Lengths(sizes, 2, s.shape.Context); err != nil {
		return err
	}
	if n := s.restoreTokens; n < lab.PageTokens || n > s.shape.Context {
		return fmt.Errorf("-restore-tokens %d: want %d to %d", n, lab.PageTokens, s.shape.Context)
	}
	if s.repetitions < 1 || s.pairs < 1 {
		return fmt.Errorf("-n %d, -pairs %d: at least one repetition is needed", s.repetitions, s.pairs)
	}
	if s.plot != "" && s.show == "" {
		return errors.New("-plot draws a report: name it with -show")
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
	measure func(context.Context, *rig) (any, error)
}{
	{"ttft", true, measureTTFT},
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
	{"team", false, measureTeam},
	{"evict", false, measureEvict},
}

// names lists the parts.
func names() (all []string) {
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
		switch {
		case err != nil:
			return err
		case s.plot != "":
			return report.plot(s.plot)
		}
		report.print(stdout)
		return nil
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
	return show.Save(s.out, report)
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
		settings: s, Steps: show.Steps{Display: steps}, dir: dir, canDrop: !s.quick && measure.DropCaches() == nil,
		versions: &report.Versions, numCtx: report.Settings.NumCtx,
	}
	if s.log != "" {
		log, err := os.Create(s.log)
		if err != nil {
			return nil, fmt.Errorf("making the file for the output of servers: %w", err)
		}
		defer log.Close()
		r.serverLog = log
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
		result, err := p.measure(ctx, r)
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
