package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/show"
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
	defaultRemoteMBs   = "1000,300,100,30,10,3,1"
	defaultStoreMiB    = 1024
	defaultStorePages  = "10000,1000000"
)

// Limits of flags: tokens of the chains of store have 32 bits.
const (
	storePagesMax = 10_000_000
	storeMiBMax   = 8192
	remoteMBsMax  = 100_000
)

// trainedContext is the context length in the model's file: the largest possible.
const trainedContext = 256 << 10

// The sizes of -quick, which runs every part and yields no figure of use.
const (
	quickTokens  = 300
	quickAnswer  = 8
	quickRestore = 512
	quickRemote  = 512
	quickMBs     = "100"

	quickStoreMiB   = 64
	quickStorePages = "500,1000"
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
		remoteTokens: remoteTokens,
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var model, only, sizes, remoteMBs, storePages string
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
	flags.StringVar(&remoteMBs, "remote-mbs", defaultRemoteMBs, "`speeds` of remote's tier, in MB per second")
	flags.IntVar(&s.storeMiB, "store-mib", defaultStoreMiB, "`MiB` of rows that store saves and restores")
	flags.StringVar(&storePages, "store-pages", defaultStorePages, "`numbers` of tiny pages that store looks up among, ascending; a million take 12 GB of disk and minutes to write")
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
		s.remoteTokens, remoteMBs = quickRemote, quickMBs
		s.storeMiB, storePages = quickStoreMiB, quickStorePages
	}
	s.shape = s.shape.WithDefaults()
	return s, s.fillIn(only, sizes, remoteMBs, storePages)
}

// fillIn reads the lists and checks the numbers.
func (s *settings) fillIn(only, sizes, remoteMBs, storePages string) error {
	s.only = names()
	if only != "" {
		s.only = strings.Split(only, ",")
	}
	for _, name := range s.only {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("-only %s: there is no benchmark %q, only %s", only, name, strings.Join(names(), ", "))
		}
	}
	var err error
	if s.sizes, err = numbers("-sizes", sizes, "tokens", 2, s.shape.Context); err != nil {
		return err
	}
	if s.remoteMBs, err = numbers("-remote-mbs", remoteMBs, "MB per second", 1, remoteMBsMax); err != nil {
		return err
	}
	if s.storePages, err = numbers("-store-pages", storePages, "pages", 1, storePagesMax); err != nil {
		return err
	}
	if n := s.restoreTokens; n < lab.PageTokens || n > s.shape.Context {
		return fmt.Errorf("-restore-tokens %d: want %d to %d", n, lab.PageTokens, s.shape.Context)
	}
	if s.storeMiB < 1 || s.storeMiB > storeMiBMax {
		return fmt.Errorf("-store-mib %d: want 1 to %d", s.storeMiB, storeMiBMax)
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

// numbers reads a comma-separated list of a flag. of names the unit in errors.
func numbers(flag, list, of string, least, most int) ([]int, error) {
	var all []int
	for number := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(number)
		if err != nil || n < least || n > most {
			return nil, fmt.Errorf("%s %s: %q is not a number of %s from %d to %d", flag, list, number, of, least, most)
		}
		all = append(all, n)
	}
	return all, nil
}

// names lists the benchmarks.
func names() []string {
	var all []string
	for _, benchmark := range benchmarks {
		all = append(all, benchmark.name)
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
		if err != nil {
			return err
		}
		report.print(stdout)
		return nil
	}
	steps := progress.New(stderr, show.StepNames)
	b, err := newBench(s, steps)
	if err != nil {
		return err
	}
	err = b.run(ctx)
	steps.Close()
	if err != nil {
		return err
	}
	b.report.print(stdout)
	if s.out == "" {
		return nil
	}
	if old, err := load(s.out); err == nil {
		b.report.keep(old)
	}
	return b.report.save(s.out)
}
