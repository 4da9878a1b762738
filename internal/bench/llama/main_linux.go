package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/testmodel"
)

func main() { show.Main(run) }

// settings are the command line.
type settings struct {
	out           string
	only          []string
	sizes         []int
	repetitions   int
	conversations int
	length        int           // of a conversation of switch, in tokens
	pause         time.Duration // before a prompt of savers
}

// trainedContext is the context length in the model's file.
const trainedContext = 256 << 10

// bench starts servers and makes prompts for all parts.
type bench struct {
	settings
	show.Steps
	checkout string
	tree     string
	dir      string // temporary
	model    string
	shape    testmodel.Shape
	seed     int
}

// parts are the values of -only, in the order they run, with the figures that we aim at.
var parts = []struct {
	name    string
	measure func(*bench, context.Context) (any, error)
	aim     string
}{
	{"ttft", (*bench).measureTTFT, ""},
	{"real", (*bench).measureReal, ""},
	{"chat", (*bench).measureChat, ""},
	{"switch", (*bench).measureSwitch, ""},
	{"hot", (*bench).measureHot, "added up to 1 ms, text up to 1.02"},
	{"gaps", (*bench).measureGaps, "p99 up to 1.2"},
	{"drafts", (*bench).measureDrafts, ""},
	{"savers", (*bench).measureSavers, "of never killed up to 1.05, written up to 1.05"},
}

// report is all that was measured; parts are there by their names.
type report struct {
	Machine         measure.Machine `json:"machine"`
	Go              string          `json:"go"`
	Model           string          `json:"model"`
	KVBytesPerToken int64           `json:"kv_bytes_per_token"`
	Parts           map[string]any  `json:"parts"`
}

// print prints tables for people.
func (r *report) print(w io.Writer) {
	if r.Machine.BusyBefore > measure.BusyShare {
		fmt.Fprintf(w, "\nThe machine was busy (%s): the figures may suffer.\n", show.Percent(r.Machine.BusyBefore))
	}
	for _, p := range parts {
		if part := r.Parts[p.name]; part != nil {
			show.Figures(w, p.name, part)
			if p.aim != "" {
				fmt.Fprintln(w, "aim: "+p.aim)
			}
		}
	}
}

func parse(args []string, errOut io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("llama", flag.ContinueOnError)
	flags.SetOutput(errOut)
	var all []string
	for _, p := range parts {
		all = append(all, p.name)
	}
	flags.StringVar(&s.out, "o", "", "write every measured value to this JSON `file`")
	only := flags.String("only", "", "comma-separated `parts`: "+strings.Join(all, ", ")+"; default all")
	sizes := flags.String("sizes", "4096,8192,16384,32768", "`lengths` of the prompts of ttft, in tokens")
	flags.IntVar(&s.repetitions, "n", 3, "repetitions of ttft, real, gaps, drafts and savers, 100 times as many short answers of hot, and ten times as many long ones")
	flags.IntVar(&s.conversations, "conversations", 8, "conversations of switch")
	flags.IntVar(&s.length, "length", 8192, "tokens of a conversation of switch")
	flags.DurationVar(&s.pause, "pause", time.Second, "`time` before each prompt of savers, on all sides")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if s.only, err = show.Chosen(*only, all); err != nil {
		return s, err
	}
	if s.sizes, err = show.Lengths(*sizes, 256, trainedContext/2); err != nil {
		return s, err
	}
	if min(s.repetitions, s.conversations, s.length-255) < 1 || s.length > trainedContext/2 {
		return s, errors.New("-n and -conversations: want at least 1; -length: want at least 256")
	}
	return s, nil
}

func run(ctx context.Context, args []string, out, errOut io.Writer) (err error) {
	b := &bench{Steps: show.Steps{Display: progress.New(errOut, show.StepNames)}, shape: testmodel.Shape{Arch: "llama", Context: trainedContext, Seed: 1}.WithDefaults()}
	if b.settings, err = parse(args, errOut); err != nil {
		return err
	}
	if b.checkout, err = os.Getwd(); err != nil {
		return err
	}
	if b.tree, err = llamatest.FindDir(b.checkout); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp(filepath.Join(b.checkout, "build"), "bench-llama-"); err != nil {
		return fmt.Errorf("make a folder for the benchmarks: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	r := report{
		Machine: measure.Describe(b.dir), Go: runtime.Version(), KVBytesPerToken: b.shape.KVBytesPerToken(), Parts: make(map[string]any),
		Model: fmt.Sprintf("%s, random weights, %d layers of %d, f16", b.shape.Arch, b.shape.Layers, b.shape.Embed),
	}
	b.model = filepath.Join(b.dir, "model.gguf")
	if err := testmodel.Write(b.model, b.shape); err != nil {
		return err
	}
	for _, p := range parts {
		if !slices.Contains(b.only, p.name) {
			continue
		}
		if r.Parts[p.name], err = p.measure(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	r.print(out)
	if b.out == "" {
		return nil
	}
	return show.Save(b.out, r)
}

// side is a way to run a server.
type side string

const (
	stock side = "stock"
	ram   side = "ram"
	whole side = "whole"
	ours  side = "ours"
)

// root is the directory of our pages.
func (b *bench) root() string { return filepath.Join(b.dir, "pages") }

// files is the directory of whole slots.
func (b *bench) files() string { return filepath.Join(b.dir, "slots") }

// served is what a server serves. Zero values: the model of most parts, one slot, all processors.
type served struct {
	model   string
	slots   int
	tokens  int // of the longest prompts of all slots together
	threads int
	args    []string
}

// start starts a server.
func (b *bench) start(ctx context.Context, s side, m served) (*llamatest.Server, error) {
	o := llamatest.Options{
		Dir: b.tree, Model: cmp.Or(m.model, b.model), Log: filepath.Join(b.dir, "daemon.log"),
		Args: append([]string{
			"-np", strconv.Itoa(cmp.Or(m.slots, 1)), "-c", strconv.Itoa(m.tokens + 1024),
			"-t", strconv.Itoa(cmp.Or(m.threads, runtime.NumCPU())),
		}, m.args...),
	}
	switch s {
	case stock:
		o.Args = append(o.Args, "--cache-ram", "0")
	case ram:
		o.Args = append(o.Args, "--cache-ram", "8192") // MiB
	case whole:
		if err := os.MkdirAll(b.files(), 0o700); err != nil {
			return nil, err
		}
		o.Args = append(o.Args, "--cache-ram", "0", "--slot-save-path", b.files()+"/")
	case ours:
		o.Root = b.root()
		o.Env = []string{"OLLAMA_KV_TIER_LOCAL_GB=0"}
	}
	return llamatest.Start(ctx, o)
}

// on starts a server, which is killed after use.
func (b *bench) on(ctx context.Context, s side, m served, use func(*llamatest.Server) error) error {
	server, err := b.start(ctx, s, m)
	if err != nil {
		return err
	}
	defer server.Kill()
	return use(server)
}

// clean removes all pages and files.
func (b *bench) clean() error { return errors.Join(os.RemoveAll(b.root()), os.RemoveAll(b.files())) }

// pair has a stock server and ours take a turn each, of which the first alternates.
func pair[T any](turn int, take func(side) (T, error)) (ofStock, ofOurs T, err error) {
	return measure.Pair(turn, func() (T, error) { return take(stock) }, func() (T, error) { return take(ours) })
}

// oneThreadLess leaves a processor to the client and to kvtier.
func oneThreadLess() int { return max(1, runtime.NumCPU()-1) }

// tokens is a prompt of n tokens that no prompt before had.
func (b *bench) tokens(n int) []int32 {
	b.seed++
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(300 + (b.seed*7919+i*i*31+i/1000)%1000)
	}
	return tokens
}
