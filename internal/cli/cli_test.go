package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// program has a verb with a flag of each type.
func program() (root *cobra.Command, out *bytes.Buffer) {
	root = &cobra.Command{Use: "tool"}
	work := &cobra.Command{Use: "work", Short: "Work", RunE: func(cmd *cobra.Command, _ []string) error {
		return cmp.Or(NoEmptyValues(cmd.Flags()), errors.New("no"))
	}}
	flags := work.Flags()
	flags.Bool("quick", false, "")
	flags.Float64("gb", 0, "")
	flags.Float64("rate", 0, "")
	flags.IntP("jobs", "j", 0, "")
	flags.Int64("bytes", 0, "")
	flags.Duration("timeout", time.Second, "")
	flags.String("name", "", "")
	Give(flags, "gb", "a number of gigabytes")
	one := &cobra.Command{Use: "one PAGE", Args: Args(1, 1, "name one page"), RunE: func(*cobra.Command, []string) error { return nil }}
	root.AddCommand(work, one)
	Prepare(root)
	out = new(bytes.Buffer)
	root.SetOut(out)
	root.SetErr(out)
	return root, out
}

func TestMisuse(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"play"}, `unknown command "play"; tool help lists the commands`},
		{[]string{"wrok"}, `unknown command "wrok"; did you mean work? tool help lists the commands`},
		{[]string{"help", "play"}, `unknown command "play"; tool help lists the commands`},
		{[]string{"help", "work", "hard"}, `tool work has no command "hard"; see tool work --help`},
		{[]string{"completion", "ksh"}, `tool completion has no command "ksh"; see tool completion --help`},
		{[]string{"completion", "bash", "more"}, `tool completion bash takes no arguments, and "more" is one; see tool completion bash --help`},
		{[]string{"work", "more"}, `tool work takes no arguments, and "more" is one; see tool work --help`},
		{[]string{"one"}, "name one page"},
		{[]string{"one", "two", "three"}, "name one page"},
		{[]string{"one", ""}, "name one page"},
		{[]string{"work", "--slow"}, "there is no flag --slow; tool work --help lists the flags"},
		{[]string{"work", "-x"}, "there is no flag -x; tool work --help lists the flags"},
		{[]string{"work", "--name"}, "--name needs a value; tool work --help lists the flags"},
		{[]string{"work", "-j"}, "-j needs a value; tool work --help lists the flags"},
		{[]string{"work", "--name", ""}, "--name is empty; give a value, or leave it out"},
		{[]string{"work", "--=x"}, "bad flag syntax: --=x; tool work --help lists the flags"},
		{[]string{"work", "--quick=maybe"}, "--quick is maybe; give true or false"},
		{[]string{"work", "--gb", "lots"}, "--gb is lots; give a number of gigabytes"},
		{[]string{"work", "--gb="}, "--gb is empty; give a number of gigabytes"},
		{[]string{"work", "--rate", "1 2"}, `--rate is "1 2"; give a number`},
		{[]string{"work", "-j", "two"}, "--jobs is two; give a whole number"},
		{[]string{"work", "--bytes", `a"b`}, `--bytes is "a\"b"; give a whole number`},
		{[]string{"work", "--bytes", "99999999999999999999"}, "--bytes is 99999999999999999999; give a whole number"},
		{[]string{"work", "--timeout", "5"}, "--timeout is 5; give a time such as 30s"},
	} {
		root, out := program()
		root.SetArgs(test.args)
		err := root.Execute()
		require.EqualError(t, err, test.want)
		require.Equal(t, Misused, Status(err))
		require.Empty(t, out.String(), "the program prints the error")
	}
}

func TestHelp(t *testing.T) {
	for want, lines := range map[string][]string{
		"Available Commands": {"", "help", "--help"},
		"  completion ":      {"", "help", "--help"},
		"--timeout":          {"help work", "work --help"},
		"powershell":         {"completion", "help completion"},
		"work\tWork\n":       {"__complete help "},
	} {
		for _, line := range lines {
			root, out := program()
			root.SetArgs(strings.Split(line, " "))
			if line == "" {
				root.SetArgs(nil)
			}
			require.NoError(t, root.Execute())
			require.Contains(t, out.String(), want, line)
		}
	}
}

func TestStatus(t *testing.T) {
	require.Zero(t, Status(nil))
	require.Nil(t, Usage(nil))
	cause := errors.New("no")
	require.Equal(t, Failed, Status(cause))
	require.Equal(t, Misused, Status(fmt.Errorf("flag: %w", Usage(cause))))
	require.ErrorIs(t, Usage(cause), cause)
	require.Equal(t, 3, Status(&Error{3, cause}))
	root, _ := program()
	root.SetArgs([]string{"work", "--name", " ", "--quick"}) // no value is empty
	require.Equal(t, Failed, Status(root.Execute()))
}
