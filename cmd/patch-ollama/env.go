package main

import (
	"fmt"
	"strings"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/spf13/cobra"
)

func newEnvCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print the variables that build sets for Go, for a shell",
		Long: `Print the variables that build sets for Go, as a shell reads them: with these and
-trimpath, go build and go test compile no package again that build has compiled.
The source must be fetched.`,
		Example: `  eval "$(patch-ollama env)"; cd build/ollama/src; go vet -trimpath ./kvcache`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			unlock, err := a.lock(cmd.Context())
			if err != nil {
				return err
			}
			defer unlock()
			t, err := a.tree(cmd.Context())
			if err != nil {
				return err
			}
			vars, err := ollamasrc.GoVars(cmd.Context(), a.lay, t)
			if err != nil {
				return err
			}
			for _, v := range vars {
				name, value, _ := strings.Cut(v, "=")
				fmt.Fprintf(a.stdout, "export %s=%s\n", name, shellQuote(value))
			}
			return nil
		},
	}
}

// shellQuote returns text as one word of a shell.
func shellQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
