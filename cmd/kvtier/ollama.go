package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry/listen"
)

// planned is the output of ollama install --json and ollama remove --json.
type planned struct {
	DryRun  bool           `json:"dry_run"`
	Service string         `json:"service"` // "" where systemd does not run Ollama
	Folder  string         `json:"folder"`  // of llama-server
	Steps   []install.Step `json:"steps"`
	Hints   []string       `json:"hints"`
	Last    []string       `json:"last"` // what to do when the steps are carried out
}

type ollamaFlags struct {
	install.Choice
	dryRun, yes bool
}

func newOllamaCommand(out *output) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ollama",
		Short: "Put kvtier before the llama-server of a stock Ollama, or take it away",
		Long: `Put kvtier before the llama-server of a stock Ollama, or take it away. Ollama has a
llama-server from v0.30 on.`,
	}
	cmd.AddCommand(newOllamaInstallCommand(out), newOllamaRemoveCommand(out), newOllamaStatusCommand(out))
	return cmd
}

func newOllamaInstallCommand(out *output) *cobra.Command {
	var f ollamaFlags
	var metrics, reset, group string
	var docker bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Put kvtier before Ollama's llama-server",
		Long: `Put kvtier before Ollama's llama-server, and check that it works. The
steps are shown first; --dry-run adds the content of files. On a terminal you are asked then;
elsewhere --yes is needed.

Where systemd runs Ollama, a drop-in mounts kvtier over llama-server for
the service alone. Ollama's folder does not change, so updates of Ollama need nothing.
The drop-in turns tiering on; --root, --local-gb, --remote, --remote-gb and --metrics set the
variables of the same meaning. Settings of an earlier install stay; --reset
remote,metrics takes these two back and leaves the others.

Elsewhere llama-server is renamed to llama-server-real, and kvtier takes
its name. Set OLLAMA_KV_TIERING=1 for ollama serve yourself, and run install again
after an update of Ollama.

A container is changed in its image: --docker prints the lines, and does nothing else.`,
		Example: `  sudo kvtier ollama install --dry-run
  sudo kvtier ollama install --root /fast/pages --local-gb 100
  kvtier ollama install --prefix ~/ollama`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if docker {
				if others := otherFlags(cmd.Flags(), "docker"); others != "" {
					return cli.Usagef("--docker prints lines for an image, in which variables are ENV lines of yours; leave %s out", others)
				}
				_, err := io.WriteString(out.stdout, dockerLines)
				return err
			}
			variables, err := given(cmd.Flags())
			if err != nil {
				return err
			}
			if metrics != "" {
				if variables[listen.Variable], err = listen.Address(metrics); err != nil {
					return cli.Usage(err)
				}
			}
			if group != "" {
				variables[install.GroupVariable] = group
			}
			defaults, err := resetVariables(reset)
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			p, err := install.Here().Install(cmd.Context(), install.Options{Choice: f.Choice, Program: self, Variables: variables, Reset: defaults})
			if err != nil {
				return err
			}
			return f.carryOut(cmd.Context(), out, p, "install")
		},
	}
	only(cmd, "json", "root", "remote", "local-gb", "remote-gb")
	help := cmd.HelpFunc()
	cmd.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		cmd.InheritedFlags().Lookup("root").Usage = "directory of pages, as the service's " + localVar + "; its other variables stay"
		help(cmd, args)
	})
	f.add(cmd)
	cli.Flag(cmd.Flags(), &metrics, "metrics", "HOST:PORT", "address for Prometheus and the web page, such as 127.0.0.1:9401, as the service's "+listen.Variable)
	cli.Flag(cmd.Flags(), &group, "group", "the name of a group", "let its members run "+install.ReadVerbs()+" as the service's user, without a password; why prints texts of prompts")
	cli.Flag(cmd.Flags(), &reset, "reset", "names of flags with commas between them", "flags of an earlier install that get their defaults again, such as remote,metrics")
	cmd.Flags().BoolVar(&docker, "docker", false, "print the lines for a container")
	return cmd
}

// resetVariables are the service's variables of flags in a list.
func resetVariables(list string) (variables []string, err error) {
	for _, name := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		variable := cmp.Or(replaced[name], map[string]string{"metrics": listen.Variable, "group": install.GroupVariable}[name])
		if variable == "" {
			return nil, cli.Usagef("--reset has %q; give root, local-gb, remote, remote-gb, metrics or group, with commas between them", name)
		}
		variables = append(variables, variable)
	}
	return variables, nil
}

// otherFlags lists the flags that were given, except one.
func otherFlags(flags *pflag.FlagSet, name string) string {
	var names []string
	flags.Visit(func(f *pflag.Flag) {
		if f.Name != name {
			names = append(names, "--"+f.Name)
		}
	})
	return strings.Join(names, ", ")
}

// dockerLines make an image of Ollama with kvtier. docs/install.md shows its file.
const dockerLines = `# A file Dockerfile, in a folder with kvtier for Linux:

FROM ollama/ollama:` + install.Tried + `
RUN mv /usr/lib/ollama/llama-server /usr/lib/ollama/llama-server-real
COPY kvtier /usr/lib/ollama/llama-server
RUN ln -s /usr/lib/ollama/llama-server /usr/bin/kvtier
ENV OLLAMA_KV_TIERING=1

# In that folder. Without an NVIDIA card leave out --gpus all; for an AMD card use the image
# ollama/ollama:` + install.Tried + `-rocm, and --device /dev/kfd --device /dev/dri in place of --gpus all.

docker build --tag ollama-kvtier .
docker run --detach --name ollama --init --stop-timeout 30 --gpus all \
    --volume ollama:/root/.ollama --publish 127.0.0.1:11434:11434 ollama-kvtier
docker exec ollama ollama pull smollm2:135m
docker exec ollama kvtier try
docker exec ollama kvtier ls
`

func newOllamaRemoveCommand(out *output) *cobra.Command {
	var f ollamaFlags
	cmd := &cobra.Command{
		Use:   "remove",
		Short: "Take kvtier away again",
		Long: `Take kvtier away again: afterwards Ollama runs its own llama-server, and
nothing is left except pages, and the log where systemd does not run Ollama. The
steps are shown first. On a terminal you are asked then; elsewhere --yes is needed.

Pages stay, because they are conversations: the last lines of the plan name their
directories.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := install.Here().Remove(cmd.Context(), f.Choice)
			if err != nil {
				return err
			}
			return f.carryOut(cmd.Context(), out, p, "remove")
		},
	}
	only(cmd, "json")
	f.add(cmd)
	return cmd
}

func newOllamaStatusCommand(out *output) *cobra.Command {
	var c install.Choice
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether models run behind kvtier",
		Long: `Show the installations of Ollama, and whether their models run behind
kvtier. Only root sees the files that a running service sees.

The exit status is 1 if an installation of kvtier needs attention.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := install.Here().Status(cmd.Context(), c, os.Getenv("OLLAMA_HOST"))
			if err != nil {
				return err
			}
			return showStatus(out, all)
		},
	}
	only(cmd, "json")
	addChoice(cmd, &c)
	return cmd
}

func addChoice(cmd *cobra.Command, c *install.Choice) {
	flags := cmd.Flags()
	cli.Flag(flags, &c.Prefix, "prefix", giveDir, "the folder above bin/ollama, or that of ollama, instead of looking everywhere")
	cli.Flag(flags, &c.Service, "service", giveService, "the systemd service, instead of "+machine.DefaultService)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	if err := cmd.MarkFlagDirname("prefix"); err != nil {
		panic(err) // the flag is missing
	}
}

func (f *ollamaFlags) add(cmd *cobra.Command) {
	addChoice(cmd, &f.Choice)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "show the steps, and carry none out")
	cmd.Flags().BoolVar(&f.yes, "yes", false, "do not ask")
}

// only leaves some of the global flags to a verb about llama-server: the others are refused,
// and are not in its help.
func only(cmd *cobra.Command, useful ...string) {
	useless := func(name string) bool { return !slices.Contains(useful, name) }
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if runtime.GOOS == "windows" {
			return errors.New("kvtier does not run on Windows yet")
		}
		if err := cli.NoEmptyValues(cmd.Flags()); err != nil {
			return err
		}
		var err error
		cmd.InheritedFlags().VisitAll(func(flag *pflag.Flag) {
			if err == nil && flag.Changed && useless(flag.Name) {
				err = cli.Usagef("--%s has no meaning here; leave it out", flag.Name)
			}
		})
		return err
	}
	cmd.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		cmd.InheritedFlags().VisitAll(func(flag *pflag.Flag) { flag.Hidden = flag.Hidden || useless(flag.Name) })
		cmd.Root().HelpFunc()(cmd, args)
	})
}

func (f ollamaFlags) carryOut(ctx context.Context, out *output, p *install.Plan, verb string) error {
	if cannot := p.Cannot(); cannot != nil && f.dryRun {
		p.Hints = append(p.Hints, "These steps are not for this user: "+cannot.Error()+".")
	} else if cannot != nil {
		return cannot
	}
	steps := planned{f.dryRun, p.Ollama.Service, p.Ollama.Folder, append([]install.Step{}, p.Steps...), append([]string{}, p.Hints...), append([]string{}, p.Last...)}
	if err := out.show(steps, func(w io.Writer) { steps.print(w, verb) }); err != nil {
		return err
	}
	if f.dryRun || len(p.Steps) == 0 {
		return nil
	}
	if !f.yes {
		if out.asJSON || !term.IsTerminal(int(os.Stdin.Fd())) {
			return cli.Usagef("nobody can be asked here, so nothing was done; give --yes, or --dry-run")
		}
		if !ask(os.Stdin, out.stderr) {
			return errors.New("nothing was changed")
		}
	}
	say := func(text string) {
		if !out.asJSON {
			fmt.Fprintln(out.stdout, text)
		}
	}
	if err := p.Do(ctx, func(s install.Step) { say("done: " + s.Text) }); err != nil {
		return err
	}
	say(map[string]string{"install": "kvtier is installed.", "remove": "kvtier is removed."}[verb])
	for _, last := range p.Last {
		say(last)
	}
	return nil
}

func ask(in io.Reader, out io.Writer) bool {
	fmt.Fprint(out, "Continue? [y/N] ")
	answer, _ := bufio.NewReader(in).ReadString('\n') // nothing is no
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}

func (out planned) print(w io.Writer, verb string) {
	if len(out.Steps) == 0 {
		fmt.Fprintln(w, "There is nothing to do.")
	} else {
		fmt.Fprintf(w, "The steps of %s:\n\n", verb)
	}
	for i, s := range out.Steps {
		fmt.Fprintf(w, "%3d. %s\n", i+1, s.Text)
		if !out.DryRun {
			continue
		}
		for line := range strings.Lines(s.Shows) {
			fmt.Fprint(w, "       | "+line)
		}
	}
	if len(out.Steps) > 0 {
		fmt.Fprintln(w)
	}
	for _, hint := range out.Hints {
		fmt.Fprintln(w, hint)
	}
	if out.DryRun || len(out.Steps) == 0 {
		for _, last := range out.Last {
			fmt.Fprintln(w, last)
		}
	}
}

// showStatus prints installations. One that needs attention is an error.
func showStatus(out *output, all []install.Status) error {
	if err := out.show(all, func(w io.Writer) { printStatus(w, all) }); err != nil {
		return err
	}
	if slices.ContainsFunc(all, install.Status.Bad) {
		return errors.New("an installation of kvtier needs attention")
	}
	return nil
}

// printStatus prints a table, and a sentence for everything that needs attention.
func printStatus(w io.Writer, all []install.Status) {
	printTable(w, []string{"OLLAMA", "SERVICE", "FOLDER", "STATE", "KVTIER", "SERVER", "TIERING"}, rowsOf(all, func(s install.Status) []string {
		answers := "no answer"
		if s.Answers {
			answers = strings.TrimPrefix(s.URL, "http://")
		}
		return []string{cmp.Or(s.Ollama, "-"), cmp.Or(s.Service, "-"), cmp.Or(s.Folder, "-"), string(s.State), cmp.Or(s.Kvtier, "-"), answers, s.Tiering}
	}))
	for _, s := range all {
		for _, hint := range s.Hints {
			fmt.Fprintf(w, "\n%s\n", hint)
		}
		if s.LastLog != "" {
			fmt.Fprintf(w, "\n%s ends with: %s\n", s.Log, s.LastLog)
		}
	}
}
