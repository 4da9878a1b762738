package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/doctor"
	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/internal/remote"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
)

// Variables that flags replace.
const (
	localVar    = tierenv.LocalVariable
	localGBVar  = tierenv.LocalGBVariable
	remoteVar   = tierenv.RemoteVariable
	remoteGBVar = tierenv.RemoteGBVariable
	instanceVar = tierenv.InstanceVariable
)

// Descriptions of the values of flags, where the type is not enough.
const (
	giveDir     = "a directory"
	giveService = "the name of a systemd service"
	giveGB      = "a number of gigabytes"
	giveModel   = "the name of a model"
	giveOutput  = "the name of a file"
)

var replaced = map[string]string{"root": localVar, "remote": remoteVar, "local-gb": localGBVar, "remote-gb": remoteGBVar}

// given returns the values of the variables that flags replace.
func given(flags *pflag.FlagSet) (map[string]string, error) {
	values := make(map[string]string)
	for name, variable := range replaced {
		flag := flags.Lookup(name)
		if !flag.Changed {
			continue
		}
		text := flag.Value.String()
		if gb, err := flags.GetFloat64(name); err == nil {
			if !(gb >= 0 && gb*1e9 <= math.MaxInt64/2) {
				return nil, cli.BadValue(flag, text)
			}
		} else if name == "remote" && strings.Contains(text, "://") { // an engine
		} else if text, err = filepath.Abs(text); err != nil {
			return nil, fmt.Errorf("find --%s %s: %w", name, text, err)
		}
		values[variable] = text
	}
	return values, nil
}

// setVariables replaces variables by flags. With --root, the instance's directory below the root, the
// variables of budgets and the variable of the remote tier do not apply: they belong to another root.
func setVariables(flags *pflag.FlagSet) error {
	values, err := given(flags)
	if err != nil {
		return err
	}
	if flags.Changed("root") {
		for _, name := range []string{remoteVar, localGBVar, remoteGBVar, instanceVar, tierenv.SplitVariable} {
			if _, ok := values[name]; !ok {
				values[name] = ""
			}
		}
	}
	return setenv(values)
}

func setenv(values map[string]string) error {
	for name, value := range values {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// storage is where a server keeps its pages: by flags, by variables, or by those of the service
// that kvtier is installed for.
type storage struct {
	config  tierenv.Config
	budgets map[string]bool // tiers with a budget from a flag or a variable
	service install.Served  // whose variables count, or without a name
	timeout time.Duration   // limit of one operation of a tier's filesystem; 0 for none
	log     *slog.Logger
	args    []string // of this command line
	become  func(access) (rights, error)
	wasRoot bool   // sudo is no help
	by      rights // of the person who asks, for a file that a verb names
}

// access is what root needs as the owner of pages.
type access struct {
	pages  string // the directory
	models string // that of Ollama's models if the owner may not reach it, or ""
	files  bool   // the verb names a file of the person who runs it
}

// forEver is a limit that stands for none.
const forEver = 365 * 24 * time.Hour

// rights do something with the rights of a user; nil are those of this process.
type rights func(something func() error) error

func (by rights) do(something func() error) error {
	if by == nil {
		return something()
	}
	return by(something)
}

func (at *storage) addFlags(flags *pflag.FlagSet) {
	flags.String("root", "", "directory that holds v1, instead of "+localVar+" and "+instanceVar+"; the variables of budgets and of the remote tier then count for nothing")
	flags.String("remote", "", "directory or address of the remote tier, instead of "+remoteVar)
	flags.Float64("local-gb", 0, "budget of the local tier in GB, instead of "+localGBVar)
	flags.Float64("remote-gb", 0, "budget of the remote tier in GB, instead of "+remoteGBVar)
	flags.DurationVar(&at.timeout, "timeout", 0, "how long a directory may take to answer, once (default 15s, 1m where pages are read or written, 2s for ps, why, top and limit, 10s for doctor); 0 waits for ever")
	for name, values := range map[string]string{"root": giveDir, "remote": giveDir, "local-gb": giveGB, "remote-gb": giveGB} {
		cli.Give(flags, name, values)
	}
}

// patienceFor bounds the time of one operation of a tier: of a listing, or of a transfer of
// a MiB by a disk that sleeps or a share whose server restarts.
func patienceFor(verb string) time.Duration {
	switch verb {
	case "check", "repair", "export", "import":
		return time.Minute
	case "ps", "why", "top", "limit":
		return 2 * time.Second // a person looks again and again
	case "doctor":
		return doctor.LimitDefault
	}
	return 15 * time.Second
}

func (at *storage) checkFlags(verb string, flags *pflag.FlagSet) error {
	if err := cli.NoEmptyValues(flags); err != nil {
		return err
	}
	switch {
	case at.timeout < 0:
		return cli.BadValue(flags.Lookup("timeout"), at.timeout.String())
	case !flags.Changed("timeout"):
		at.timeout = patienceFor(verb)
	}
	return nil
}

// find resolves flags and variables to one configuration. served finds the service that kvtier is
// installed for. Root becomes the owner of the pages, see becomeOwner for files.
func (at *storage) find(ctx context.Context, flags *pflag.FlagSet, files bool, served func(context.Context) (install.Served, bool)) error {
	if err := setVariables(flags); err != nil {
		return err
	}
	if !flags.Changed("root") && env.Value(localVar) == "" && !hasPages() {
		at.service, _ = served(ctx)
		unset := make(map[string]string)
		for name, value := range at.service.Variables {
			if env.Value(name) == "" {
				unset[name] = value
			}
		}
		if err := setenv(unset); err != nil {
			return err
		}
	}
	at.budgets = map[string]bool{tier.Local: os.Getenv(localGBVar) != "", tier.Remote: os.Getenv(remoteGBVar) != ""}
	var err error
	at.config, err = tierenv.FromEnvironment(at.log)
	if err == nil && at.config.Local == at.config.Remote {
		return cli.Usagef("both tiers are in %s; give another directory as --root or as --remote", at.config.Local)
	}
	if err != nil || at.become == nil {
		return err
	}
	at.wasRoot = os.Geteuid() == 0
	need := access{pages: at.config.Local, files: files}
	if at.service.Private {
		need.models = cmp.Or(flags.Lookup("models").Value.String(), modelnames.Dir())
	}
	become := func() (rights, error) { return at.become(need) }
	at.by, err = steady.Do(ctx, new(steady.Guard), steady.Wait{Most: cmp.Or(at.timeout, forEver)}, become, func(rights, error) {})
	return err
}

// hasPages reports whether this user has pages in the directory of the variables, or may have.
func hasPages() bool {
	own, _ := tierenv.FromEnvironment(slog.New(slog.DiscardHandler)) // with an error, there is no directory
	if own.Local == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(own.Local, "v1"))
	return !errors.Is(err, fs.ErrNotExist)
}

// budget is a tier's budget from a flag or a variable, else 0: the default of a variable may
// be less than the budget of a server with other variables.
func (at *storage) budget(name string) int64 {
	switch {
	case !at.budgets[name]:
		return 0
	case name == tier.Remote:
		return at.config.RemoteBytes
	}
	return at.config.LocalBytes
}

func (at *storage) tiers() (local, remote diskstore.TierConfig) {
	remote = at.config.RemoteConfig()
	remote.BudgetBytes = at.budget(tier.Remote)
	return diskstore.TierConfig{Root: at.config.Local, BudgetBytes: at.budget(tier.Local)}, remote
}

func (at *storage) places() string {
	if at.config.Remote == "" {
		return at.config.Local
	}
	return at.config.Local + " or " + at.config.Remote
}

// roots are the roots of a store, for collection and for inspection. Both use the same
// directories, so a hung mount costs its time once.
type roots struct {
	*diskstore.Root
	inspect.Roots
}

func (r *roots) files(page inspect.PageFile) vfs.FS {
	if page.Tier == tier.Remote {
		return r.Remote.FS
	}
	return r.Local.FS
}

func (at *storage) with(ctx context.Context, fn func(*roots) error) error {
	root, err := at.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(fn(root), root.Close())
}

func (at *storage) usage(ctx context.Context) (usage diskstore.RootUsage, err error) {
	err = at.with(ctx, func(root *roots) error {
		usage, err = root.Usage(ctx)
		return err
	})
	return usage, err
}

func (at *storage) open(ctx context.Context) (*roots, error) {
	local, below := at.tiers()
	engine, err := remote.Open(ctx, at.config, at.log)
	if err != nil {
		return nil, err
	}
	root, err := diskstore.OpenRoot(ctx, diskstore.RootOptions{Local: local, Remote: below, RemoteTier: engine, Obsolete: tierenv.Obsolete, Eviction: at.config.Eviction, Timeout: at.timeout, Logger: at.log})
	switch {
	case err == nil:
		r := &roots{root, inspect.Roots{Log: at.log}}
		r.Local, r.Remote = root.Dirs()
		r.Engine, r.Where = root.RemoteTier()
		return r, nil
	case missing(err) && at.service.Service == "":
		return nil, fmt.Errorf("%s does not exist, so no server keeps pages there; give the server's directory as --root or in %s, or run %s", local.Root, localVar, machine.WithSudo(rooted(at.args, "DIRECTORY")...))
	}
	return nil, at.withRemedy(err)
}

func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, tier.ErrRootMissing)
}

// withRemedy adds to an error of a directory what its user can do.
func (at *storage) withRemedy(err error) error {
	others := errors.Is(err, tier.ErrRootOwner) || errors.Is(err, fs.ErrPermission)
	switch {
	case missing(err) && at.service.Service != "":
		return fmt.Errorf("%s, the directory of %s, does not exist, so no page is stored yet; give another directory as --root or in %s", at.config.Local, at.service.Service, localVar)
	case others && at.wasRoot && at.config.Remote != "" && strings.Contains(err.Error(), at.config.Remote):
		return fmt.Errorf("%w; the pages in %s belong to user %d, so give a directory of that user's as --remote", err, at.config.Local, os.Geteuid())
	case others && at.wasRoot:
		return fmt.Errorf("%w; root's rights were given up for those of the directory's owner, to whom all files in it should belong: run %s", err, machine.Command("sudo", "chown", "-hR", strconv.Itoa(os.Geteuid()), at.config.Local))
	case others && at.service.Service != "":
		return fmt.Errorf("%w; the pages of %s belong to its user, so run %s", err, at.service.Service, at.sudo())
	case others:
		return fmt.Errorf("%w; or run %s", err, at.sudo())
	}
	return err
}

// sudo is this command line for root, who runs it as the owner of the pages, or for a member of the group.
func (at *storage) sudo() string {
	if at.service.Service == "" {
		return machine.WithSudo(rooted(at.args, at.config.Local)...) // sudo drops variables
	}
	return reading(at.service, at.args)
}

// rooted is a command line with another --root.
func rooted(args []string, root string) (all []string) {
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--": // no flags follow
			return append(append(all, "--root", root), args[i:]...)
		case args[i] == "--root":
			i++ // its value
		case !strings.HasPrefix(args[i], "--root="):
			all = append(all, args[i])
		}
	}
	return append(all, "--root", root)
}

// reading is a command line for somebody who may read the pages of a service, or of others.
func reading(s install.Served, args []string) string {
	command, line := machine.WithSudo(args...), machine.Command(args...)
	verb, _, more := strings.Cut(line, " ")
	switch {
	case s.Reads == "" || !isMember(s.Group):
	case install.CanRead(line):
		return s.Reads + " " + line
	case more && install.CanRead(verb):
		return command + ", or without arguments " + s.Reads + " " + verb
	}
	return command
}

func isMember(group string) bool {
	g, err := user.LookupGroup(group)
	me, e := user.Current()
	if err != nil || e != nil {
		return false
	}
	ids, _ := me.GroupIds() // none: no member
	return slices.Contains(ids, g.Gid)
}

func (at *storage) state(ctx context.Context) (telemetry.State, error) {
	return at.readState(ctx, func(ctx context.Context) (telemetry.State, error) {
		return collect.Read(ctx, at.config.Local)
	})
}

// readState bounds the time of read, and says what to do where there is no state.
func (at *storage) readState(ctx context.Context, read func(context.Context) (telemetry.State, error)) (telemetry.State, error) {
	ctx, stop := context.WithTimeout(ctx, cmp.Or(at.timeout, forEver))
	defer stop()
	s, err := read(ctx)
	switch {
	case err == nil:
		return s, nil
	case missing(err):
		return s, fmt.Errorf("no server has reported to %s yet; run kvtier ollama install, or set OLLAMA_KV_TIERING=1 for the server, and ask a model something; if the server keeps its pages elsewhere, give that directory as --root; kvtier doctor names the cause", at.config.Local)
	}
	return s, at.withRemedy(err)
}
