package main

import (
	"slices"

	"github.com/spf13/cobra"
)

// addCompletions sets the shell completions: names of models and of directories for flags
// that take these, files after import and inspect, and nothing elsewhere.
func (a *app) addCompletions(root *cobra.Command) error {
	for _, flag := range []string{"root", "remote", "models"} {
		if err := root.MarkPersistentFlagDirname(flag); err != nil {
			return err
		}
	}
	for _, verb := range root.Commands() {
		switch verb.Name() {
		case "import", "inspect", "serve":
		case "ollama":
			if err := completeOllama(verb); err != nil {
				return err
			}
		case "limit":
			verb.ValidArgsFunction = a.completeHeld
		case "rm", "plan", "why":
			verb.ValidArgsFunction = a.completeModel
		default:
			verb.ValidArgsFunction = cobra.NoFileCompletions
		}
		if verb.Flags().Lookup("model") == nil || verb.Name() == "inspect" {
			continue
		}
		if err := verb.RegisterFlagCompletionFunc("model", a.completeModel); err != nil {
			return err
		}
	}
	return nil
}

// completeModel returns the names of models in Ollama's model store.
func (a *app) completeModel(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var list []string
	for _, names := range a.names().Names {
		list = append(list, names...)
	}
	slices.Sort(list)
	return list, cobra.ShellCompDirectiveNoFileComp
}

// completeHeld returns the names of the segments.
func (a *app) completeHeld(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var list []string
	if all, err := a.heldMemory(); err == nil && len(args) == 0 {
		for _, h := range all {
			list = append(list, h.Name)
		}
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}
