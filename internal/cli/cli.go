package cli

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// typingErrors is the number of wrong letters up to which a command is suggested.
const typingErrors = 2

// Prepare makes a program refuse a wrong command line with status [Misused] and an error
// that names the remedy. Without a verb the program shows its help. Call Prepare after
// adding all verbs to root; a verb without Args takes no arguments.
func Prepare(root *cobra.Command) {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Args = noCommand
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.SuggestionsMinimumDistance = typingErrors
	root.SetFlagErrorFunc(flagError)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, verb := range root.Commands() {
		if verb.Name() == "help" {
			verb.Args = helpArgs
		}
		if !verb.HasSubCommands() {
			if verb.Args == nil {
				verb.Args = noArgs
			}
			continue
		}
		verb.Args = noSubcommand
		if verb.RunE == nil {
			verb.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
		for _, command := range verb.Commands() { // such as a shell, for completion
			command.Args = noArgs
		}
	}
}

// noSubcommand refuses arguments of a verb that name none of the verb's commands.
func noSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return Usagef("%s has no command %q; see %[1]s --help", cmd.CommandPath(), args[0])
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return Usagef("%s takes no arguments, and %q is one; see %[1]s --help", cmd.CommandPath(), args[0])
}

// Args requires a number of arguments, of which the first is not empty. want is the text of the error.
func Args(least, most int, want string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most || len(args) > 0 && args[0] == "" {
			return Usagef("%s", want)
		}
		return nil
	}
}

// noCommand refuses arguments of a program that name none of its verbs.
func noCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := fmt.Sprintf("%s help lists the commands", root.Name())
	if like := root.SuggestionsFor(args[0]); len(like) > 0 {
		hint = fmt.Sprintf("did you mean %s? ", strings.Join(like, " or ")) + hint
	}
	return Usagef("unknown command %q; %s", args[0], hint)
}

// helpArgs refuses the help of commands that do not exist: cobra's own succeeds.
func helpArgs(help *cobra.Command, args []string) error {
	cmd, rest, err := help.Root().Find(args)
	switch {
	case err != nil:
		return Usage(err)
	case len(rest) > 0 && cmd == help.Root():
		return noCommand(cmd, rest)
	}
	return noSubcommand(cmd, rest)
}

// giveKey is the annotation of a flag that describes its values.
const giveKey = "kvtier_give"

// Give describes the values of a flag, such as "a number of gigabytes", for errors. Without
// Give, errors describe the flag's type.
func Give(flags *pflag.FlagSet, name, values string) {
	if err := flags.SetAnnotation(name, giveKey, []string{values}); err != nil {
		panic(err) // no such flag
	}
}

// Flag adds a flag whose values are described as for [Give]. The value of to is the default.
func Flag[T string | int | int64 | float64](flags *pflag.FlagSet, to *T, name, values, usage string) {
	switch to := any(to).(type) {
	case *string:
		flags.StringVar(to, name, *to, usage)
	case *int:
		flags.IntVar(to, name, *to, usage)
	case *int64:
		flags.Int64Var(to, name, *to, usage)
	case *float64:
		flags.Float64Var(to, name, *to, usage)
	}
	Give(flags, name, values)
}

// NoEmptyValues refuses a flag with an empty value, such as an unset variable in a script:
// an empty value makes no choice.
func NoEmptyValues(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(flag *pflag.Flag) {
		if err == nil && flag.Value.Type() == "string" && flag.Value.String() == "" {
			err = BadValue(flag, "")
		}
	})
	return err
}

// byType describes the values of flags by their type.
var byType = map[string]string{
	"bool": "true or false", "int": "a whole number", "int64": "a whole number",
	"float64": "a number", "duration": "a time such as 30s",
	"string": "a value, or leave it out",
}

// BadValue refuses the value of a flag.
func BadValue(flag *pflag.Flag, value string) error {
	give := byType[flag.Value.Type()]
	if own := flag.Annotations[giveKey]; len(own) > 0 {
		give = own[0]
	}
	return Usagef("--%s is %s; give %s", flag.Name, shown(value), give)
}

// shown is a value in a form that fits into a sentence.
func shown(value string) string {
	quoted := strconv.Quote(value)
	switch {
	case value == "":
		return "empty"
	case strings.Contains(value, " ") || quoted != `"`+value+`"`:
		return quoted
	}
	return value
}

// Texts of pflag's errors, which have no types.
var (
	noSuchFlag = regexp.MustCompile(`(?s)^unknown (?:flag: |shorthand flag: .* in )(-.*)$`)
	noValue    = regexp.MustCompile(`(?s)^flag needs an argument: (?:.* in )?(-.*)$`)
	badValue   = regexp.MustCompile(`(?s)^invalid argument (".*") for "(?:-., )?--([a-z-]+)" flag: `)
)

// flagError adds the remedy to an error of pflag.
func flagError(cmd *cobra.Command, err error) error {
	see := "; " + cmd.CommandPath() + " --help lists the flags"
	if m := noSuchFlag.FindStringSubmatch(err.Error()); m != nil {
		return Usagef("there is no flag %s%s", m[1], see)
	}
	if m := noValue.FindStringSubmatch(err.Error()); m != nil {
		return Usagef("%s needs a value%s", m[1], see)
	}
	if m := badValue.FindStringSubmatch(err.Error()); m != nil {
		value, quoteErr := strconv.Unquote(m[1])
		if flag := cmd.Flag(m[2]); flag != nil && quoteErr == nil {
			return BadValue(flag, value)
		}
	}
	return Usagef("%w%s", err, see)
}

// Exit statuses of every command, besides 0.
const (
	Failed      = 1   // the command failed, or found damage
	Misused     = 2   // the command line, or a variable, is wrong; nothing was done
	Interrupted = 130 // as shells expect of a program stopped by Ctrl-C
)

// Error is an error of a command with an exit status.
type Error struct {
	Status int
	Err    error // nil if the output has said why
}

func (e *Error) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}
func (e *Error) Unwrap() error { return e.Err }

// Usage gives an error the status [Misused], for a wrong command line. Usage returns nil for
// nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Misused, err}
}

// Usagef is [Usage] of a formatted error.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// Status is the exit status of a command that ended with err.
func Status(err error) int {
	var own *Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &own):
		return own.Status
	}
	return Failed
}
