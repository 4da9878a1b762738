package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/codecbench"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/table"
)

// codecsFlags are the flags of bench codecs.
type codecsFlags struct {
	model, text, questions string
	tokens, scored         int
	threads                int
	dir, out               string
}

// Descriptions of the values of the flags of bench codecs, and defaults.
const (
	giveGGUF = "a GGUF file"
	giveText = "a file of text"
	giveSVG  = "the name of an .svg file"

	codecsTokens = 4096
	codecsScored = 256
)

func newBenchCodecsCommand(a *app) *cobra.Command {
	var f codecsFlags
	cmd := &cobra.Command{
		Use:   "codecs --model FILE --text FILE",
		Short: "Measure the encodings of pages on a model and a text: size, speed, quality",
		Long: `Let a patched Ollama compute a text with a model, take the K/V of its first tokens,
and measure each encoding of pages on it: the ratio beside the order-0 entropy, the
speed on one core, the speed of reading page files back from this disk, and the
quality after a restore.

For the quality, the engine restores pages with the decoded rows and computes the
tokens that follow. KL is the divergence of its probabilities from those after rows
that never left the engine, in nats and as a mean over tokens; TOP-1 is the share of
tokens with the same most probable one; PERPLEXITY is that of the text. The 4,096
most probable tokens are compared, and the others as one. Tokens before which the
engine would end the text are left out.

--questions is a JSON file, a list of objects with "question" and "answer". Each
question is asked behind the restored tokens; LOOK-UPS counts the right answers.

The engine is the one that make build makes, or the one that KVTIER_OLLAMA names. It
runs with flash attention off: on a CPU, flash attention moves the probabilities
after long texts further than q8_0 does. Nothing is left behind, except --out.`,
		Example: `  kvtier bench codecs --model model.gguf --text book.txt
  kvtier bench codecs --model model.gguf --text book.txt --json --out chart.svg`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.NoEmptyValues(cmd.Flags()); err != nil {
				return err
			}
			return a.benchCodecs(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.model, "model", "", "GGUF file")
	flags.StringVar(&f.text, "text", "", "file with the text to compute")
	flags.StringVar(&f.questions, "questions", "", "JSON file with questions about the text's beginning")
	flags.IntVar(&f.tokens, "tokens", codecsTokens, "tokens to store and restore")
	flags.IntVar(&f.scored, "scored", codecsScored, "tokens behind them whose probabilities are compared")
	flags.IntVar(&f.threads, "threads", 0, "threads of the engine, instead of Ollama's choice; on a busy machine 1 is quickest")
	flags.StringVar(&f.dir, "dir", "", "directory on the disk to measure, instead of the system's temporary directory")
	flags.StringVar(&f.out, "out", "", "write a chart of ratio, speed and quality, an SVG file")
	cli.Give(flags, "model", giveGGUF)
	cli.Give(flags, "text", giveText)
	cli.Give(flags, "questions", "a JSON file")
	cli.Give(flags, "dir", giveDir)
	cli.Give(flags, "out", giveSVG)
	return cmd
}

func (a *app) benchCodecs(ctx context.Context, f codecsFlags) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	o.Steps = progress.New(a.screen, barNames)
	defer o.Steps.Close()
	report, err := codecbench.Run(ctx, o)
	o.Steps.Close()
	if err != nil {
		return err
	}
	if a.asJSON {
		if err := a.json(report.Results); err != nil {
			return err
		}
	} else {
		a.printCodecs(report, o)
	}
	if f.out == "" {
		return nil
	}
	return writeChart(f.out, report, o)
}

func writeChart(path string, report *codecbench.Report, o codecbench.Options) error {
	var out bytes.Buffer
	if err := report.WriteChart(&out, filepath.Base(o.Model.Path)); err != nil {
		return err
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write the chart: %w", err)
	}
	return nil
}

// options reads the files that the flags name.
func (f *codecsFlags) options() (o codecbench.Options, err error) {
	switch {
	case f.model == "" || f.text == "":
		return o, cli.Usagef("name a model and a text, as in kvtier bench codecs --model model.gguf --text book.txt")
	case f.out != "" && filepath.Ext(f.out) != ".svg":
		return o, cli.Usagef("--out is %s; give %s", f.out, giveSVG)
	case f.tokens < 1 || f.tokens%codecbench.PageTokens != 0:
		return o, cli.Usagef("--tokens is %d; give a multiple of %d", f.tokens, codecbench.PageTokens)
	case f.scored < 1 || f.scored%codecbench.PageTokens != 0:
		return o, cli.Usagef("--scored is %d; give a multiple of %d", f.scored, codecbench.PageTokens)
	case f.threads < 0:
		return o, cli.Usagef("--threads is %d; give a number of threads", f.threads)
	}
	// A measurement takes minutes: places for its results are checked before.
	if err := checkFolder("--dir", f.dir, f.dir); err != nil {
		return o, err
	}
	if err := checkFolder("--out", f.out, filepath.Dir(f.out)); err != nil {
		return o, err
	}
	o = codecbench.Options{Tokens: f.tokens, Scored: f.scored, Threads: f.threads, Dir: f.dir}
	if o.Model, err = codecsModel(f.model); err != nil {
		return o, err
	}
	if o.Text, err = readBeginning("text", f.text); err != nil || f.questions == "" {
		return o, err
	}
	o.Questions, err = readQuestions(f.questions)
	return o, err
}

// checkFolder returns an error if a flag has a value, but folder is no directory.
func checkFolder(flag, value, folder string) error {
	if value == "" {
		return nil
	}
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return cli.Usagef("%s is %s, and %s is no directory; make it, or give another place", flag, value, folder)
	}
	return nil
}

// codecsTextMax bounds the bytes of a text: more than the longest contexts take. Of a longer file
// the beginning is read.
const codecsTextMax = 64 << 20

// readBeginning reads a file of text, which an error calls by a name.
func readBeginning(name, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the %s: %w; give the name of a file", name, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, codecsTextMax))
	if err != nil {
		return "", fmt.Errorf("read the %s: %w; give the name of a file", name, err)
	}
	return string(text), nil
}

func readQuestions(path string) (questions []codecbench.Question, err error) {
	const give = "give a list of objects with question and answer"
	text, err := readBeginning("questions", path)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(text), &questions); err != nil {
		return nil, fmt.Errorf("read the questions in %s: %w; %s", path, err, give)
	}
	if len(questions) == 0 {
		return nil, fmt.Errorf("read the questions in %s: there are none; %s", path, give)
	}
	for i, q := range questions {
		if q.Question == "" || strings.TrimSpace(q.Answer) == "" {
			return nil, fmt.Errorf("read the questions in %s: number %d has no question or no answer; %s", path, i+1, give)
		}
	}
	return questions, nil
}

// codecsModel reads the context and the tokenizer of a model file.
func codecsModel(path string) (codecbench.Model, error) {
	decoder, err := openDecoder(path)
	if err != nil {
		return codecbench.Model{}, err
	}
	f, err := openModel(path)
	if err != nil {
		return codecbench.Model{}, err
	}
	defer f.Close()
	length := int(f.KeyValue("context_length").Uint())
	if length == 0 {
		return codecbench.Model{}, fmt.Errorf("read model %s: it does not say how long its context is; give another model", path)
	}
	return codecbench.Model{Path: path, Context: length, Decode: decoder.text}, nil
}

func (a *app) printCodecs(report *codecbench.Report, o codecbench.Options) {
	header := []string{"encoding", "lossless", "ratio", "bound", "encode", "decode", "restore", "cached", "kl", "top-1", "perplexity"}
	if len(o.Questions) > 0 {
		header = append(header, "look-ups")
	}
	var rows [][]string
	for _, r := range report.Results {
		row := []string{
			r.Encoding, yesNo(r.Lossless), times(r.Ratio), times(r.Bound), gigabytes(r.Encode), gigabytes(r.Decode),
			gigabytes(r.Restore), gigabytes(r.RestoreCached), fmt.Sprintf("%.6f", r.KL), fmt.Sprintf("%.1f %%", 100*r.Top1), fmt.Sprintf("%.3f", r.Perplexity),
		}
		if len(o.Questions) > 0 {
			row = append(row, fmt.Sprintf("%d of %d", r.Answered, r.Asked))
		}
		rows = append(rows, row)
	}
	table.PrintNarrow(a.stdout, header, rows)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func times(ratio float64) string { return fmt.Sprintf("%.3f×", ratio) }

// gigabytes is a rate, empty where it is not known.
func gigabytes(rate float64) string {
	if rate == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f GB/s", rate)
}
