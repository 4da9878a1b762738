package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"regexp"
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
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamatier/install"
)

// Variables that flags replace.
const (
	localVar    = "OLLAMA_KV_TIER_LOCAL"
	localGBVar  = "OLLAMA_KV_TIER_LOCAL_GB"
	remoteVar   = "OLLAMA_KV_TIER_REMOTE"
	remoteGBVar = "OLLAMA_KV_TIER_REMOTE_GB"
	instanceVar = "OLLAMA_KV_INSTANCE_ID"
)

// app is shared by the verbs: the global flags and the configuration that follows from them.
type app struct {
	stdout, stderr io.Writer
	screen         io.Writer // the target of stderr, for progress bars
	terminal       bool      // screen is a terminal and gets progress bars

	asJSON            bool
	root, remote      string
	localGB, remoteGB float64
	modelsDir         string
	modelsDisk        steady.Guard
	timeout           time.Duration // limit of one operation of a tier's filesystem
	config            tierenv.Config
	args              []string // of the command line
	// served finds the service that kvtier is installed for; nil looks at this machine.
	served   func(context.Context) (install.Served, bool)
	sayWaits time.Duration      // after which a collector that waits says so; 0: its default
	service  install.Served     // whose variables count, or without a name
	budgetOf map[string]bool    // tiers with a budget from a flag or a variable
	machine  doctor.Environment // that doctor looks at; nil for this one
}

func (a *app) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&a.asJSON, "json", false, "print JSON")
	flags.StringVar(&a.root, "root", "", "directory that holds v1, instead of "+localVar+" and "+instanceVar+"; the variables of budgets and of the remote tier then count for nothing")
	flags.StringVar(&a.remote, "remote", "", "directory of the remote tier, instead of "+remoteVar)
	flags.Float64Var(&a.localGB, "local-gb", 0, "budget of the local tier in GB, instead of "+localGBVar)
	flags.Float64Var(&a.remoteGB, "remote-gb", 0, "budget of the remote tier in GB, instead of "+remoteGBVar)
	flags.DurationVar(&a.timeout, "timeout", 0, "how long a directory may take to answer, once (default 15s, 1m where pages are read or written, 2s for ps, why, top and limit, 10s for doctor); 0 waits for ever")
	cli.Give(flags, "root", giveDir)
	cli.Give(flags, "remote", giveDir)
	cli.Give(flags, "local-gb", giveGB)
	cli.Give(flags, "remote-gb", giveGB)
	flags.StringVar(&a.modelsDir, "models", "", "directory of Ollama's models, instead of OLLAMA_MODELS")
	cli.Give(flags, "models", giveDir)
}

// Descriptions of the values of flags, where the type is not enough.
const (
	giveDir   = "a directory"
	giveGB    = "a number of gigabytes"
	giveModel = "the name of a model"
	giveShare = "a share such as 5%, or 0.05"
)

// patienceFor bounds the time of one operation of a tier: of a listing, or of a transfer of
// a MiB by a disk that sleeps or a share whose server restarts.
func patienceFor(verb string) time.Duration {
	switch verb {
	case "check", "repair", "export", "import":
		return time.Minute
	case "ps", "why", "top", "limit":
		return 2 * time.Second // a person looks again and again
	}
	return 15 * time.Second
}

// setup resolves flags and variables to one configuration.
func (a *app) setup(ctx context.Context, verb string, flags *pflag.FlagSet) error {
	if err := cli.NoEmptyValues(flags); err != nil {
		return err
	}
	switch {
	case a.timeout < 0:
		return cli.BadValue(flags.Lookup("timeout"), a.timeout.String())
	case !flags.Changed("timeout"):
		a.timeout = patienceFor(verb)
	}
	if err := a.setVariables(flags); err != nil {
		return err
	}
	if err := a.useService(ctx, flags); err != nil {
		return err
	}
	a.budgetOf = map[string]bool{
		tier.Local:  os.Getenv(localGBVar) != "",
		tier.Remote: os.Getenv(remoteGBVar) != "",
	}
	var err error
	a.config, err = tierenv.FromEnvironment(a.logger())
	if err == nil && a.config.Local == a.config.Remote {
		return cli.Usagef("both tiers are in %s; give another directory as --root or as --remote", a.config.Local)
	}
	return err
}

// setVariables replaces variables by flags. With --root, the instance's directory below the
// root, the variables of budgets and the variable of the remote tier do not apply: they belong
// to another root.
func (a *app) setVariables(flags *pflag.FlagSet) error {
	values, err := a.given(flags)
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
	for name, value := range values {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// useService sets the variables of the service that kvtier is installed for, where neither a
// flag nor a variable names a directory and this user has no pages in the default one.
func (a *app) useService(ctx context.Context, flags *pflag.FlagSet) error {
	if flags.Changed("root") || env.Value(localVar) != "" {
		return nil
	}
	own, _ := tierenv.FromEnvironment(slog.New(slog.DiscardHandler)) // with an error, there is no directory
	if own.Local != "" {
		if _, err := os.Lstat(filepath.Join(own.Local, "v1")); !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	look := a.served
	if look == nil {
		look = install.Here().Served
	}
	service, ok := look(ctx)
	if !ok {
		return nil
	}
	a.service = service
	for name, value := range service.Variables {
		if env.Value(name) != "" {
			continue
		}
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// given returns the values of the variables that flags replace.
func (a *app) given(flags *pflag.FlagSet) (map[string]string, error) {
	values := make(map[string]string)
	for flag, path := range map[string]string{"root": a.root, "remote": a.remote} {
		if !flags.Changed(flag) {
			continue
		}
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, fmt.Errorf("find --%s %s: %w", flag, path, err)
		}
		values[map[string]string{"root": localVar, "remote": remoteVar}[flag]] = abs
	}
	for flag, gb := range map[string]float64{"local-gb": a.localGB, "remote-gb": a.remoteGB} {
		if !flags.Changed(flag) {
			continue
		}
		text := strconv.FormatFloat(gb, 'g', -1, 64)
		if !(gb >= 0 && gb*1e9 <= math.MaxInt64/2) {
			return nil, cli.BadValue(flags.Lookup(flag), text)
		}
		values[map[string]string{"local-gb": localGBVar, "remote-gb": remoteGBVar}[flag]] = text
	}
	return values, nil
}

// logger prints warnings to standard error.
func (a *app) logger() *slog.Logger { return a.loggerFrom(slog.LevelWarn) }

func (a *app) loggerFrom(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, attr slog.Attr) slog.Attr {
			if len(groups) == 0 && attr.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return attr
		},
	}))
}

// budget is a tier's budget from a flag or a variable, else 0: the default of a variable may
// be less than the budget of a server with other variables.
func (a *app) budget(name string) int64 {
	switch {
	case !a.budgetOf[name]:
		return 0
	case name == tier.Remote:
		return a.config.RemoteBytes
	}
	return a.config.LocalBytes
}

func (a *app) tiers() (local, remote diskstore.TierConfig) {
	return diskstore.TierConfig{Root: a.config.Local, BudgetBytes: a.budget(tier.Local)},
		diskstore.TierConfig{Root: a.config.Remote, BudgetBytes: a.budget(tier.Remote)}
}

// roots are the roots of a store, for collection and for inspection. Both use the same
// directories, so a hung mount costs its time once.
type roots struct {
	*diskstore.Root
	inspect.Roots
}

// files returns the filesystem of a page in one of the roots.
func (r *roots) files(page inspect.PageFile) vfs.FS {
	if page.Tier == tier.Remote {
		return r.Remote.FS
	}
	return r.Local.FS
}

// open opens the roots.
func (a *app) open(ctx context.Context) (*roots, error) {
	local, remote := a.tiers()
	root, err := diskstore.OpenRoot(ctx, diskstore.RootOptions{Local: local, Remote: remote, Timeout: a.timeout, Logger: a.logger()})
	switch {
	case err != nil && a.service.Service != "":
		return nil, a.ofService(err)
	case err == nil:
		r := &roots{root, inspect.Roots{Log: a.logger()}}
		r.Local, r.Remote = root.Dirs()
		return r, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, tier.ErrRootMissing):
		return nil, fmt.Errorf("%s does not exist, so no server keeps pages there; give the server's directory as --root or in %s, or run kvtier as the server's user", local.Root, localVar)
	case errors.Is(err, tier.ErrRootOwner):
		return nil, fmt.Errorf("%w; or run kvtier as that user, as sudo -u does", err)
	}
	return nil, err
}

// plainArg matches an argument that a shell reads as it is.
var plainArg = regexp.MustCompile(`^[A-Za-z0-9/._:=@%+,-]+$`)

// ofService adds the remedy to an error of a service's directory.
func (a *app) ofService(err error) error {
	again := strings.Join(a.args, " ")
	if slices.ContainsFunc(a.args, func(arg string) bool { return !plainArg.MatchString(arg) }) {
		again = "…" // the user knows the rest
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, tier.ErrRootMissing):
		return fmt.Errorf("%s, the directory of %s, does not exist, so no page is stored yet; give another directory as --root or in %s", a.config.Local, a.service.Service, localVar)
	case errors.Is(err, tier.ErrRootOwner), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; the pages of %s belong to its user, so run sudo -u %s kvtier %s", err, a.service.Service, cmp.Or(a.service.User, "USER"), again)
	}
	return err
}

// places names the directories of the tiers.
func (a *app) places() string {
	if a.config.Remote == "" {
		return a.config.Local
	}
	return a.config.Local + " or " + a.config.Remote
}

// files is the operating system's filesystem, for a page named by its path.
func (a *app) files(path string) vfs.FS {
	if a.timeout == 0 {
		return vfs.OS
	}
	return vfs.Bound(vfs.OS, filepath.Dir(path), a.timeout)
}

// with opens the roots, calls fn and closes the roots.
func (a *app) with(ctx context.Context, fn func(*roots) error) error {
	root, err := a.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(fn(root), root.Close())
}

func (a *app) json(v any) error {
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(a.stdout, printableJSON(text.String()))
	return err
}
