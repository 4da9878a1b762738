package main

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/doctor"
)

// exitWarned is the status of a doctor that has found warnings and no error.
const exitWarned = exitUnchecked

func newDoctorCommand(out *output, h host, at *storage) *cobra.Command {
	var service string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find problems that keep pages from helping, with a command for each",
		Long: `Find problems that keep pages from helping: variables that the server does not
see, a directory or an engine that cannot be used, a full disk, models that are
not tiered, causes for which nothing is stored, prompts that change at the front.
Each finding has its evidence and a command.

Run it with sudo: only root and the server's user see all of it. Nothing is
changed, except that something empty is made in each directory of pages and in an
engine, and removed.

The exit status is 1 with an error, 3 with a warning and no error, else 0.`,
		Example: `  sudo kvtier doctor
  kvtier doctor --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			given, err := given(cmd.Flags())
			if err != nil {
				return err
			}
			opt := doctor.Options{
				Root: given[localVar], Remote: given[remoteVar], LocalGB: given[localGBVar], RemoteGB: given[remoteGBVar],
				Limit: cmp.Or(at.timeout, forEver),
			}
			ctx, stop := context.WithTimeout(cmd.Context(), opt.Limit)
			defer stop()
			served, _ := h.served(ctx)
			opt.Service, opt.Again = cmp.Or(service, served.Service), reading(served, at.args)
			r := doctor.Look(cmd.Context(), h.machine, opt)
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			// The report has said the rest. Notes are no reason for a status.
			status := map[doctor.Severity]int{doctor.Error: cli.Failed, doctor.Warning: exitWarned}[r.Worst]
			if err := out.show(r, r.Print); err != nil || status == 0 {
				return err
			}
			return &cli.Error{Status: status}
		},
	}
	cli.Flag(cmd.Flags(), &service, "service", giveService, "the systemd service of the server, instead of ollama.service")
	return cmd
}
