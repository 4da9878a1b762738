package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/ollama/ollama/envconfig"
	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/trial"
	"github.com/kvtier/kvtier/telemetry/show"
)

func newTryCommand(out *output, h host) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "try [model]",
		Short: "Ask your Ollama a long question, unload the model, and ask again",
		Long: `Ask your Ollama a long question, unload the model, and ask again: the table shows how
long the first token took each time, without the time in which the model was loaded.
The model is one that you have pulled, the smallest one by default. Each run asks a new
question, whose pages stay, as those of any other.

The exit status is 1 if the question was computed again.`,
		Example: `  kvtier try
  kvtier try qwen3:4b`,
		Args: cli.Args(0, 1, "name one model, or none for the smallest one"),
		RunE: func(cmd *cobra.Command, args []string) error {
			bars := progress.New(h.stderr, len(trial.Unloaded))
			if h.terminal {
				bars = progress.NewTransient(h.stderr, len(trial.Unloaded))
			}
			host := strings.Replace(envconfig.Host().String(), "0.0.0.0", "127.0.0.1", 1)
			client := trial.Client{URL: strings.TrimSuffix(host, "/"), HTTP: http.DefaultClient}
			if loaded, err := trial.Loaded(cmd.Context(), client); err != nil {
				return err
			} else if len(loaded) > 0 && !yes {
				return fmt.Errorf("Ollama has %s in memory, for somebody perhaps, and the trial would unload it; run ollama stop %[1]s, or give --yes", loaded[0])
			}
			r, err := trial.Run(cmd.Context(), client, strings.Join(args, ""), func(name string, do func() error) error {
				return bars.Do(name, func(*progress.Step) (string, error) { return "", do() })
			})
			bars.Close()
			if err != nil {
				return err
			}
			if err := out.show(r, func(w io.Writer) { printTrial(w, r) }); err != nil {
				return err
			}
			if !r.Restored() {
				return errors.New("the question was computed again; sudo kvtier ollama status and sudo kvtier doctor say why")
			}
			return nil
		},
	}
	only(cmd, "json")
	cmd.Flags().BoolVar(&yes, "yes", false, "also while Ollama holds a model in memory")
	return cmd
}

func printTrial(w io.Writer, r trial.Result) {
	var rows [][]string
	for i, a := range r.Rows {
		reused, quicker, same := "-", "", ""
		if a.Reused != nil {
			reused = show.Count(int64(*a.Reused))
		}
		if i > 0 {
			quicker = fmt.Sprintf("%.3g×", r.Rows[0].First/max(a.First, 1e-6))
		}
		if a.Situation == trial.Unloaded {
			same = map[bool]string{true: "yes", false: "no"}[a.Same]
		}
		rows = append(rows, []string{a.Situation, show.Count(int64(a.Tokens)), reused, show.Seconds(a.First), quicker, same})
	}
	printTable(w, []string{strings.ToUpper(r.Model), "PROMPT TOKENS", "REUSED", "FIRST TOKEN", "QUICKER", "SAME ANSWER"}, rows)
	fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(r.Said))
}
