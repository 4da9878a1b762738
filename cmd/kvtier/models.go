package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry"
)

// modelStore is Ollama's model store.
type modelStore struct {
	given   string         // its directory, instead of Ollama's own
	timeout *time.Duration // limit of a look at its disk; 0 for none
	disk    steady.Guard
}

// dir returns the directory of Ollama's models, "" if there is none.
func (m *modelStore) dir() string { return cmp.Or(m.given, modelnames.Dir()) }

// names reads the names of models. Without readable names, output has digests, and so it does
// where the models' disk does not answer in time.
func (m *modelStore) names() modelNames { return m.namesIn(m.dir()) }

// namesIn is names for another directory of models.
func (m *modelStore) namesIn(dir string) modelNames {
	if *m.timeout <= 0 {
		return modelNames{modelnames.Read(dir)}
	}
	read := func() (modelnames.Names, error) { return modelnames.Read(dir), nil }
	names, _ := steady.Do(context.Background(), &m.disk, steady.Wait{Most: *m.timeout}, read, func(modelnames.Names, error) {})
	return modelNames{names}
}

// complete returns the names of models, for shells.
func (m *modelStore) complete(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	list := slices.Concat(slices.Collect(maps.Values(m.names().Names))...)
	slices.Sort(list)
	return list, cobra.ShellCompDirectiveNoFileComp
}

// completeOrFile returns the names of models for shells, which add files.
func (m *modelStore) completeOrFile(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	list, _ := m.complete(cmd, args, begin)
	return list, cobra.ShellCompDirectiveDefault
}

// blob returns the path of weights in Ollama's model store, "" if the store lacks them.
func (m *modelStore) blob(weights string) string {
	dir := m.dir()
	if dir == "" || weights == "" || m.disk.Hangs() {
		return ""
	}
	path := filepath.Join(dir, "blobs", "sha256-"+weights)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return path
}

// modelNames are the names of models, as output has them.
type modelNames struct{ modelnames.Names }

// digits is the number of digits of a digest in output, as in ollama list.
const digits = 12

func short(digest string) string { return digest[:min(len(digest), digits)] }

// of names the model of an identity: by its names, or else by its digest, or as unknown.
func (n modelNames) of(identity map[string]string) string {
	weights := identity[tierenv.KeyWeights]
	switch names := n.Names[weights]; {
	case weights == "":
		return "unknown"
	case len(names) > 0:
		return strings.Join(names, ", ")
	}
	return "weights " + short(weights)
}

// gone reports whether there are models, and none has the weights of an identity.
func (n modelNames) gone(identity map[string]string) bool {
	weights := identity[tierenv.KeyWeights]
	return weights != "" && len(n.Names) > 0 && len(n.Names[weights]) == 0
}

// nameOf names weights as Ollama does, or else as their process did.
func (n modelNames) nameOf(weights, own string) string {
	if len(n.Names[weights]) == 0 && own != "" {
		return own
	}
	return n.of(map[string]string{tierenv.KeyWeights: weights})
}

// keepModel returns a filter for the weights of one model, which the user gives by its name or by
// the first digits of its weights. Without a model, all are kept.
func keepModel(s telemetry.State, names modelNames, wanted string) (func(weights string) bool, error) {
	if wanted == "" {
		return func(string) bool { return true }, nil
	}
	meant := make(map[string]bool)
	for _, is := range []func(telemetry.Model) bool{
		func(m telemetry.Model) bool { return names.Has(m.Weights, wanted) || m.Name == wanted },
		func(m telemetry.Model) bool { return begins(wanted, m.Weights) },
	} {
		for _, m := range s.Models {
			if is(m.Model) {
				meant[m.Model.Weights] = true
			}
		}
		if len(meant) > 0 {
			return func(weights string) bool { return meant[weights] }, nil
		}
	}
	return nil, fmt.Errorf("no model %q has reported; kvtier ps lists those that have", wanted)
}

// minPickDigits is the least number of digits that name a digest, so that a short word is no
// digest.
const minPickDigits = 4

// picked is a choice of fingerprints.
type picked map[pagefile.Key]bool

func (p picked) has(key pagefile.Key) bool { return p[key] }

// pick finds the fingerprints of a model by its name, or else by the beginning of the digest
// of its weights, or of a fingerprint. A model has one fingerprint for each engine, cache
// type and so on. A fingerprint of exact pages names those of its lossy pages as well.
func pick(ctx context.Context, root *roots, names modelNames, what string) (picked, error) {
	usage, err := root.Usage(ctx)
	if err != nil {
		return nil, err
	}
	all := slices.Concat(usage.Local.Fingerprints, usage.Remote.Fingerprints)
	p := newPicked(all, func(use diskstore.FingerprintUsage) bool {
		return names.Has(use.Identity[tierenv.KeyWeights], what)
	})
	if len(p) > 0 {
		return p, nil
	}
	meant := make(map[string]bool) // identities whose digests begin with the digits
	p = newPicked(all, func(use diskstore.FingerprintUsage) bool {
		digest, own := use.Identity[tierenv.KeyWeights], use.Fingerprint.String()
		exact, lossy := tier.LossyOf(use.Fingerprint, use.Identity)
		switch {
		case begins(what, digest):
			meant[digest] = true
		case lossy && begins(what, exact.String()):
			meant[exact.String()] = true
		case begins(what, own):
			meant[own] = true
		default:
			return false
		}
		return true
	})
	switch {
	case len(p) == 0 && usage.RemoteErr != nil:
		return p, fmt.Errorf("%w for %q in the local tier, and the remote one cannot be listed: %w", errNothing, what, usage.RemoteErr)
	case len(p) == 0 && slices.ContainsFunc(all, func(use diskstore.FingerprintUsage) bool {
		return len(names.Names[use.Identity[tierenv.KeyWeights]]) == 0
	}):
		return p, fmt.Errorf("%w for %q; kvtier ls lists the models with pages; name a model that Ollama no longer has by the digits in that list", errNothing, what)
	case len(p) == 0:
		return p, fmt.Errorf("%w for %q; kvtier ls lists the models with pages", errNothing, what)
	case len(meant) < 2:
		return p, nil
	}
	digests := slices.Sorted(maps.Keys(meant))
	for i, d := range digests {
		digests[i] = short(d)
	}
	return p, fmt.Errorf("%q could be %s; give more digits", what, strings.Join(digests, " or "))
}

// errNothing reports a model without pages.
var errNothing = errors.New("nothing is stored")

// pickAll picks several models, each of which must have pages, or prompts that kvtier why shows.
func pickAll(ctx context.Context, root *roots, names modelNames, models []string, hasPrompts func(model string) (bool, error)) (picked, error) {
	all := make(picked)
	for _, what := range models {
		p, err := pick(ctx, root, names, what)
		if errors.Is(err, errNothing) {
			if has, failed := hasPrompts(what); has {
				err = nil // a file of another model that cannot be read stays
			} else if failed != nil {
				err = errors.Join(err, failed)
			}
		}
		if err != nil {
			return all, err
		}
		maps.Copy(all, p)
	}
	return all, nil
}

// newPicked keeps the fingerprints of all that chosen accepts.
func newPicked(all []diskstore.FingerprintUsage, chosen func(diskstore.FingerprintUsage) bool) picked {
	p := make(picked)
	for _, use := range all {
		if chosen(use) {
			p[use.Fingerprint] = true
		}
	}
	return p
}

// begins reports whether s has enough digits to name a digest, which begins with them.
func begins(s, digest string) bool {
	return len(s) >= minPickDigits && strings.Trim(s, "0123456789abcdef") == "" && strings.HasPrefix(digest, s)
}

// modelUsage explains the flag whose value pick reads.
const modelUsage = "name of a model, or the first digits of its weights' digest or of an ID that kvtier ls shows"
