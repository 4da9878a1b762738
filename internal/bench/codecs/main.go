package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/modelfile"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/table"
)

func main() { show.Main(command) }

// settings are the command line.
type settings struct {
	model, text, questions string
	tokens, scored         int
	threads                int
	dir                    string
	json                   bool
}

const (
	defaultTokens = 4096
	defaultScored = 256

	stepNames = 18 // columns
)

func parse(args []string, errOut io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("codecs", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.StringVar(&s.model, "model", "", "GGUF `file`")
	flags.StringVar(&s.text, "text", "", "`file` with the text to compute")
	flags.StringVar(&s.questions, "questions", "", "JSON `file` with questions about the text's beginning: a list of objects with question and answer")
	flags.IntVar(&s.tokens, "tokens", defaultTokens, "`tokens` to store and restore")
	flags.IntVar(&s.scored, "scored", defaultScored, "`tokens` behind them whose probabilities are compared")
	flags.IntVar(&s.threads, "threads", 0, "`threads` of the engine, instead of Ollama's choice; on a busy machine 1 is quickest")
	flags.StringVar(&s.dir, "dir", "", "`directory` on the disk to measure, instead of the system's temporary directory")
	flags.BoolVar(&s.json, "json", false, "print JSON")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q; every setting is a flag, see -help", flags.Arg(0))
	case s.model == "" || s.text == "":
		return s, fmt.Errorf("name a model and a text, as in -model model.gguf -text book.txt")
	}
	return s, nil
}

// command measures as its arguments say.
func command(ctx context.Context, args []string, out, errOut io.Writer) error {
	s, err := parse(args, errOut)
	if err != nil {
		return err
	}
	o, err := s.options()
	if err != nil {
		return err
	}
	o.Steps = progress.New(errOut, stepNames)
	defer o.Steps.Close()
	results, err := Run(ctx, o)
	o.Steps.Close()
	if err != nil {
		return err
	}
	if !s.json {
		printTable(out, results, len(o.Questions) > 0)
		return nil
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(results)
}

// options reads the files that the flags name.
func (s *settings) options() (o Options, err error) {
	o = Options{Tokens: s.tokens, Scored: s.scored, Threads: s.threads, Dir: s.dir}
	if o.Model, err = readModel(s.model); err != nil {
		return o, err
	}
	if o.Text, err = readText("text", s.text); err != nil || s.questions == "" {
		return o, err
	}
	o.Questions, err = readQuestions(s.questions)
	return o, err
}

// readText reads a file of text, which an error calls by a name.
func readText(name, path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the %s: %w; give the name of a file", name, err)
	}
	return string(text), nil
}

func readQuestions(path string) (questions []Question, err error) {
	const give = "give a list of objects with question and answer"
	text, err := readText("questions", path)
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

// readModel reads the context and the tokenizer of a model file.
func readModel(path string) (Model, error) {
	decoder, err := modelfile.OpenDecoder(path)
	if err != nil {
		return Model{}, err
	}
	f, err := modelfile.Open(path)
	if err != nil {
		return Model{}, err
	}
	defer f.Close()
	length := int(f.KeyValue("context_length").Uint())
	if length == 0 {
		return Model{}, fmt.Errorf("read model %s: it does not say how long its context is; give another model", path)
	}
	return Model{Path: path, Context: length, Decode: decoder.Text}, nil
}

func printTable(w io.Writer, results []Result, asked bool) {
	header := []string{"encoding", "lossless", "ratio", "encode", "decode", "restore", "cached", "kl", "top-1", "perplexity"}
	if asked {
		header = append(header, "look-ups")
	}
	var rows [][]string
	for _, r := range results {
		row := []string{
			r.Encoding, yesNo(r.Lossless), fmt.Sprintf("%.3f×", r.Ratio), gigabytes(r.Encode), gigabytes(r.Decode),
			gigabytes(r.Restore), gigabytes(r.RestoreCached), fmt.Sprintf("%.6f", r.KL), fmt.Sprintf("%.1f %%", 100*r.Top1), fmt.Sprintf("%.3f", r.Perplexity),
		}
		if asked {
			row = append(row, fmt.Sprintf("%d of %d", r.Answered, r.Asked))
		}
		rows = append(rows, row)
	}
	table.PrintNarrow(w, header, rows)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// gigabytes is a rate, empty where it is not known.
func gigabytes(rate float64) string {
	if rate == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f GB/s", rate)
}
