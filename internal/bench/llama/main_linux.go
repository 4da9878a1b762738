package main

import (
	"context"
	"encoding/json"
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
	turns         int
	conversations int
	length        int // of a conversation of switch, in tokens
	cacheMB       int
}

// trainedContext is the context length in the model's file.
const trainedContext = 256 << 10

// bench starts servers and makes prompts for all parts.
type bench struct {
	settings settings
	checkout string
	tree     string
	dir      string // temporary
	model    string
	shape    testmodel.Shape
	steps    *progress.Display
	seed     int
}

// parts are the values of -only, in the order they run.
var parts = []struct {
	name    string
	measure func(*bench, context.Context) (any, error)
}{
	{"ttft", (*bench).measureTTFT},
	{"real", (*bench).measureReal},
	{"chat", (*bench).measureChat},
	{"switch", (*bench).measureSwitch},
	{"hot", (*bench).measureHot},
	{"gaps", (*bench).measureGaps},
	{"drafts", (*bench).measureDrafts},
	{"savers", (*bench).measureSavers},
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
	only := flags.String("only", strings.Join(all, ","), "comma-separated `parts`")
	sizes := flags.String("sizes", "4096,8192,16384,32768", "`lengths` of the prompts of ttft, in tokens")
	flags.IntVar(&s.repetitions, "n", 3, "repetitions of ttft, real, gaps, drafts and savers, 100 times as many short answers of hot, and ten times as many long ones")
	flags.IntVar(&s.turns, "turns", 20, "turns of the chat")
	flags.IntVar(&s.conversations, "conversations", 8, "conversations of switch")
	flags.IntVar(&s.length, "length", 8192, "tokens of a conversation of switch")
	flags.IntVar(&s.cacheMB, "cache-ram", 8192, "--cache-ram of the side with a cache in memory, in MiB")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	s.only = strings.Split(*only, ",")
	for _, name := range s.only {
		if !slices.Contains(all, name) {
			return s, fmt.Errorf("-only %s: no such part; there are %s", name, strings.Join(all, ", "))
		}
	}
	for _, text := range strings.Split(*sizes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 256 || n > trainedContext/2 {
			return s, fmt.Errorf("-sizes %s: want numbers from 256 to %d", *sizes, trainedContext/2)
		}
		s.sizes = append(s.sizes, n)
	}
	if min(s.repetitions, s.turns, s.conversations, s.length-255) < 1 || s.length > trainedContext/2 {
		return s, errors.New("-n, -turns and -conversations: want at least 1; -length: want at least 256")
	}
	return s, nil
}

func run(ctx context.Context, args []string, out, errOut io.Writer) (err error) {
	b := &bench{steps: progress.New(errOut, show.StepNames), shape: testmodel.Shape{Arch: "llama", Context: trainedContext, Seed: 1}.WithDefaults()}
	if b.settings, err = parse(args, errOut); err != nil {
		return err
	}
	checkout, err := os.Getwd()
	if err != nil {
		return err
	}
	b.checkout = checkout
	if b.tree, err = llamatest.FindDir(checkout); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp(filepath.Join(checkout, "build"), "bench-llama-"); err != nil {
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
		if !slices.Contains(b.settings.only, p.name) {
			continue
		}
		if r.Parts[p.name], err = p.measure(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	r.print(out)
	if b.settings.out == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(b.settings.out, append(text, '\n'), 0o644)
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

// start starts a server for prompts of at most so many tokens.
func (b *bench) start(ctx context.Context, s side, tokens int) (*llamatest.Server, error) {
	return b.startModel(ctx, s, b.model, tokens, runtime.NumCPU())
}

// startModel starts a server of a model with one slot, which computes with a number of threads.
func (b *bench) startModel(ctx context.Context, s side, model string, tokens, threads int) (*llamatest.Server, error) {
	return b.startSlots(ctx, s, model, 1, tokens, threads)
}

// startSlots starts a server of a model with a number of slots, for as many tokens in all.
func (b *bench) startSlots(ctx context.Context, s side, model string, slots, tokens, threads int, args ...string) (*llamatest.Server, error) {
	o := llamatest.Options{
		Dir: b.tree, Model: model, Log: filepath.Join(b.dir, "daemon.log"),
		Args: []string{"-np", strconv.Itoa(slots), "-c", strconv.Itoa(tokens + 1024), "-t", strconv.Itoa(threads)},
	}
	o.Args = append(o.Args, args...)
	switch s {
	case stock:
		o.Args = append(o.Args, "--cache-ram", "0")
	case ram:
		o.Args = append(o.Args, "--cache-ram", strconv.Itoa(b.settings.cacheMB))
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

// step runs a step, which returns a note about its result.
func (b *bench) step(name string, do func() (note string, err error)) error {
	return b.steps.Do(name, func(*progress.Step) (string, error) { return do() })
}

// clean removes all pages and files.
func (b *bench) clean() error { return errors.Join(os.RemoveAll(b.root()), os.RemoveAll(b.files())) }

// tokens is a prompt of n tokens that no prompt before had.
func (b *bench) tokens(n int) []int32 {
	b.seed++
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(300 + (b.seed*7919+i*i*31+i/1000)%1000)
	}
	return tokens
}
