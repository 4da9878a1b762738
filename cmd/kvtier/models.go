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
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/telemetry"
)

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
	read := func() (modelnames.Names, error) { return modelnames.Read(vfs.Through(dir)), nil }
	names, _ := steady.Do(context.Background(), &m.disk, steady.Wait{Most: cmp.Or(*m.timeout, forEver)}, read, func(modelnames.Names, error) {})
	return modelNames{names}
}

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
	path := filepath.Join(vfs.Through(dir), "blobs", "sha256-"+weights)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return path
}

// file finds a model's file by its name, or else by the model's name in the store, and the digest of its weights,
// "" where it is not known without reading the whole file.
func (m *modelStore) file(model string) (path, weights string, err error) {
	if info, err := os.Stat(model); err == nil && info.Mode().IsRegular() {
		weights, _ = digests.OfBlob(model)
		return model, weights, nil
	}
	names := m.names()
	for digest := range names.Names {
		if !names.Has(digest, model) {
			continue
		}
		if path := m.blob(digest); path != "" {
			return path, digest, nil
		}
		return "", "", fmt.Errorf("the weights of %q are not in %s; run ollama pull %s", model, m.dir(), model)
	}
	return "", "", fmt.Errorf("%q is neither a file nor a model in %s; give a name that ollama list shows, a GGUF file, or the directory of the models as --models", model, m.dir())
}

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
	named := func(m telemetry.ModelState) bool { return names.Has(m.Model.Weights, wanted) || m.Model.Name == wanted }
	chosen, err := choose(wanted, s.Models, named, func(m telemetry.ModelState) []string { return []string{m.Model.Weights} })
	if err == nil && len(chosen) == 0 {
		err = fmt.Errorf("no model %q has reported; kvtier ps lists those that have", wanted)
	}
	return func(weights string) bool {
		return slices.ContainsFunc(chosen, func(m telemetry.ModelState) bool { return m.Model.Weights == weights })
	}, err
}

// minPickDigits is the least number of digits that name a digest, so that a short word is no digest.
const minPickDigits = 4

// begins reports whether s has enough digits to name a digest, which begins with them.
func begins(s, digest string) bool {
	return len(s) >= minPickDigits && strings.Trim(s, "0123456789abcdef") == "" && strings.HasPrefix(digest, s)
}

// choose returns those of all that what names, or else those of which it begins a digest: all have that
// digest then, or more digits are needed.
func choose[T any](what string, all []T, named func(T) bool, digests func(T) []string) (chosen []T, err error) {
	for _, one := range all {
		if named(one) {
			chosen = append(chosen, one)
		}
	}
	if len(chosen) > 0 {
		return chosen, nil
	}
	meant := make(map[string]bool)
	for _, one := range all {
		list := digests(one)
		if i := slices.IndexFunc(list, func(digest string) bool { return begins(what, digest) }); i >= 0 {
			chosen, meant[short(list[i])] = append(chosen, one), true
		}
	}
	if len(meant) > 1 {
		return nil, fmt.Errorf("%q could be %s; give more digits", what, strings.Join(slices.Sorted(maps.Keys(meant)), " or "))
	}
	return chosen, nil
}

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
	weights := func(use diskstore.FingerprintUsage) string { return use.Identity[tierenv.KeyWeights] }
	named := func(use diskstore.FingerprintUsage) bool { return names.Has(weights(use), what) }
	chosen, err := choose(what, all, named, func(use diskstore.FingerprintUsage) []string {
		own := use.Fingerprint.String()
		if exact, lossy := tier.LossyOf(use.Fingerprint, use.Identity); lossy {
			return []string{weights(use), exact.String(), own}
		}
		return []string{weights(use), own}
	})
	unnamed := func(use diskstore.FingerprintUsage) bool { return len(names.Names[weights(use)]) == 0 }
	switch {
	case err != nil:
		return nil, err
	case len(chosen) == 0 && usage.RemoteErr != nil:
		return nil, fmt.Errorf("%w for %q in the local tier, and the remote one cannot be listed: %w", errNothing, what, usage.RemoteErr)
	case len(chosen) == 0 && slices.ContainsFunc(all, unnamed):
		return nil, fmt.Errorf("%w for %q; kvtier ls lists the models with pages; name a model that Ollama no longer has by the digits in that list", errNothing, what)
	case len(chosen) == 0:
		return nil, fmt.Errorf("%w for %q; kvtier ls lists the models with pages", errNothing, what)
	}
	p := make(picked)
	for _, use := range chosen {
		p[use.Fingerprint] = true
	}
	return p, nil
}

// errNothing reports a model without pages.
var errNothing = errors.New("nothing is stored")

// modelUsage explains the flag whose value pick reads.
const modelUsage = "name of a model, or the first digits of its weights' digest or of an ID that kvtier ls shows"
