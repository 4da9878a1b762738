package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/user"
	"path"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/elastic/balance"
	"github.com/kvtier/kvtier/elastic/segment"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/sizing"
)

func newBalanceCommand(out *output) *cobra.Command {
	var users []string
	cmd := &cobra.Command{
		Use:   "balance SIZE [NAME ...]",
		Short: "Divide KV memory between processes as their load moves, until Ctrl-C",
		Long: `Divide memory between the processes of this machine that hold KV memory, until
Ctrl-C. Twice a second balance looks at their segments and moves the limits that
kvtier limit shows: work that runs or waits comes first, then conversations that
nobody waits for. The limits that balance sets add up to SIZE at most.

Without names SIZE is host memory, divided between all processes of Ollamas with
OLLAMA_KVCACHED=1. NAME is that of a line of kvtier limit, or a pattern:
'kvcached_*_cuda0' divides memory of the first GPU.

Processes of other users are left out. Run balance as the user of the servers, or
as root with --user.

After balance has ended, limits stay as they are.`,
		Example: `  kvtier balance 16G
  kvtier balance 20G 'kvcached_*_cuda0'
  sudo kvtier balance 16G --user ollama`,
		Args: cli.Args(1, math.MaxInt, "give the memory to divide, such as 16G"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runBalancer(cmd.Context(), out, args[0], args[1:], users)
		},
	}
	only(cmd)
	cmd.Flags().StringArrayVar(&users, "user", nil, "divide between processes of this `USER`, by name or number, instead of your own; may be repeated; for root")
	return cmd
}

// onDevice are the segments of GPU memory, which is no part of a budget of host memory.
var onDevice = regexp.MustCompile(`_cuda[0-9]+$`)

// balanced reports whether a segment takes part: one that a pattern matches, or without patterns one of
// host memory of a process of ours.
func balanced(s segment.Segment, patterns []string) bool {
	if len(patterns) == 0 {
		return s.State != segment.Foreign && !onDevice.MatchString(s.Name)
	}
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, _ := path.Match(pattern, s.Name)
		return ok
	})
}

func runBalancer(ctx context.Context, out *output, size string, names, users []string) error {
	budget, err := sizing.ParseMemory(size)
	if err != nil {
		return cli.Usage(err)
	}
	for _, name := range names {
		if _, err := path.Match(name, ""); err != nil {
			return cli.Usagef("%q is not a pattern of names", name)
		}
	}
	uids, err := balancedUsers(users)
	if err != nil {
		return err
	}
	b := balance.Balancer{
		Budget: budget, Users: uids,
		Of:      func(s segment.Segment) bool { return balanced(s, names) },
		Changed: limitPrinter(out),
	}
	return b.Run(ctx)
}

// balancedUsers are the numbers of users.
func balancedUsers(names []string) (uids []uint32, err error) {
	for _, name := range names {
		number := name
		if u, err := user.Lookup(name); err == nil {
			number = u.Uid
		}
		uid, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return nil, cli.Usagef("there is no user %q", name)
		}
		if me := os.Getuid(); me != 0 && me != int(uid) {
			return nil, cli.Usagef("only root divides memory of user %s: run kvtier as that user, or as root", name)
		}
		uids = append(uids, uint32(uid))
	}
	return uids, nil
}

// limitPrinter returns a function that prints new limits, and an error once until it is another one.
func limitPrinter(out *output) func(balance.Change, error) {
	failed := make(map[string]string) // the error of each segment
	return func(c balance.Change, err error) {
		now := time.Now().Format(time.TimeOnly)
		if err == nil {
			delete(failed, c.Name)
			fmt.Fprintf(out.stdout, "%s %s %s -> %s\n", now, c.Name, memoryText(c.From), memoryText(c.To))
		} else if failed[c.Name] != err.Error() {
			failed[c.Name] = err.Error()
			fmt.Fprintf(out.stderr, "%s %s\n", now, err)
		}
	}
}
