package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/ollama/ollama/envconfig"
	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/internal/modelfile"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/trial"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry/show"
)

func newTryCommand(out *output, h host) *cobra.Command {
	var yes bool
	real := "llama-server"
	cmd := &cobra.Command{
		Use:   "try [model | file.gguf]",
		Short: "Ask a long question, unload the model, and ask again",
		Long: `Ask your Ollama a long question, unload the model, and ask again: the table shows how
long the first token took each time, without the time in which the model was loaded.
The model is one that you have pulled, the smallest one by default. A GGUF file is
asked by a llama-server alone, which is killed and started again; no Ollama is needed.
Each run asks a new question, whose pages stay, as those of any other.

The exit status is 1 if the question was computed again.`,
		Example: `  kvtier try
  kvtier try qwen3:4b
  kvtier try --llama-server ./llama-server model.gguf`,
		Args: cli.Args(0, 1, "name one model or one file, or none for the smallest model"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := strings.Join(args, "")
			if strings.HasSuffix(name, ".gguf") {
				return tryFile(cmd.Context(), out, h, name, real)
			}
			return tryOllama(cmd.Context(), out, h, name, yes)
		},
	}
	only(cmd, "json")
	cmd.Flags().BoolVar(&yes, "yes", false, "also while Ollama holds a model in memory")
	cmd.Flags().StringVar(&real, "llama-server", real, "`program` that is asked about a file")
	return cmd
}

func tryOllama(ctx context.Context, out *output, h host, name string, yes bool) error {
	host := strings.Replace(envconfig.Host().String(), "0.0.0.0", "127.0.0.1", 1)
	o := &trial.Ollama{URL: strings.TrimSuffix(host, "/"), HTTP: http.DefaultClient}
	if loaded, err := o.Loaded(ctx); err != nil {
		return err
	} else if len(loaded) > 0 && !yes {
		return fmt.Errorf("Ollama has %s in memory, for somebody perhaps, and the trial would unload it; run ollama stop %[1]s, or give --yes", loaded[0])
	}
	if err := o.Choose(ctx, name); err != nil {
		return err
	}
	r, err := runTrial(ctx, h, o, nil)
	return showTrial(out, r, errors.Join(err, o.Close()), func() string { return cureOf(ctx, h, o.URL) })
}

// cureOf says what to do about an Ollama that computes its prompts again.
func cureOf(ctx context.Context, h host, url string) string {
	all, _ := h.machine.Installed(ctx) // with an error, nothing is known
	all = slices.DeleteFunc(all, func(s install.Status) bool { return s.URL != url || s.Cure == "" })
	switch {
	case len(all) != 1:
		return fmt.Sprintf("%s and %s say why", machine.WithSudo("ollama", "status"), machine.WithSudo("doctor"))
	case len(all[0].Hints) > 0:
		return strings.TrimSuffix(all[0].Hints[0], ".")
	}
	return fmt.Sprintf("kvtier is %s for %s; run %s", all[0].State, all[0].Executable, all[0].Cure)
}

// tryFile asks a llama-server that is started for it.
func tryFile(ctx context.Context, out *output, h host, file, name string) error {
	real, err := findReal(name, "as --llama-server")
	if err != nil {
		return err
	}
	f, err := modelfile.Open(file)
	if err != nil {
		return err
	}
	window := f.KeyValue("context_length").Int()
	f.Close()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	s := &trial.Alone{File: file, Window: int(window), Serve: []string{program, "serve", "--", real}}
	r, err := runTrial(ctx, h, s, s.Start)
	return showTrial(out, r, errors.Join(err, s.Close()), func() string { return "kvtier why and kvtier ls say more" })
}

// runTrial shows each step. Start, if any, comes first.
func runTrial(ctx context.Context, h host, s trial.Server, start func(context.Context) error) (r trial.Result, err error) {
	bars := progress.New(h.stderr, len(trial.Killed))
	if h.terminal {
		bars = progress.NewTransient(h.stderr, len(trial.Killed))
	}
	defer bars.Close()
	step := func(name string, do func() error) error {
		return bars.Do(name, func(*progress.Step) (string, error) { return "", do() })
	}
	if start != nil {
		if err := step("load the model", func() error { return start(ctx) }); err != nil {
			return r, err
		}
	}
	return trial.Run(ctx, s, step)
}

func showTrial(out *output, r trial.Result, err error, more func() string) error {
	if err != nil {
		return err
	}
	if err := out.show(r, func(w io.Writer) { printTrial(w, r) }); err != nil {
		return err
	}
	if !r.Restored() {
		return fmt.Errorf("the question was computed again. %s", more())
	}
	return nil
}

func printTrial(w io.Writer, r trial.Result) {
	var rows [][]string
	for i, a := range r.Rows {
		last := i == len(r.Rows)-1
		reused, quicker, same := "-", "", ""
		if a.Reused != nil {
			reused = show.Count(int64(*a.Reused))
		}
		if i > 0 {
			quicker = fmt.Sprintf("%.3g×", r.Rows[0].First/max(a.First, 1e-6))
		}
		if last {
			same = map[bool]string{true: "yes", false: "no"}[a.Same]
		}
		rows = append(rows, []string{a.Situation, show.Count(int64(a.Tokens)), reused, show.Seconds(a.First), quicker, same})
	}
	printTable(w, []string{strings.ToUpper(r.Model), "PROMPT TOKENS", "REUSED", "FIRST TOKEN", "QUICKER", "SAME ANSWER"}, rows)
	fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(r.Said))
}
