// Package remote opens the engine that OLLAMA_KV_TIER_REMOTE names in place of a directory. Its clients are
// several megabytes of code, which the patched Ollama goes without.
package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/s3"
	"github.com/kvtier/kvtier/diskstore/tier/sealed"
	"github.com/kvtier/kvtier/diskstore/tier/valkey"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// errPlain reports pages that others could read on the way.
var errPlain = errors.New("its requests are not encrypted, and pages are prompts: use https or valkeys, set " +
	tierenv.KeyFileVariable + " to a file with the team's key, or add plain=1 to the address's parameters, as in ?plain=1")

// plainParameter is that of an address whose requests may be read on the way.
var plainParameter = regexp.MustCompile(`([?&])plain=1(?:&|$)`)

// Open returns the tier of the settings, nil where that is a directory or there is none. Open asks nothing of the
// engine, which may be away. Errors never have a password.
func Open(ctx context.Context, c tierenv.Config, log *slog.Logger) (tier.Tier, error) {
	if c.Address == "" {
		return nil, nil
	}
	t, _, err := openWith(ctx, c, nil, log)
	return t, err
}

// openWith opens the tier with the credentials in some variables, nil for those of this process, and also returns
// the tier that is sealed.
func openWith(ctx context.Context, c tierenv.Config, set map[string]string, log *slog.Logger) (t, inner tier.Tier, err error) {
	address := plainParameter.ReplaceAllString(c.Address, "$1")
	plain := address != c.Address
	inner, encrypted, err := open(ctx, strings.TrimRight(address, "?&"), set, log)
	if err != nil {
		return nil, nil, fmt.Errorf("open the remote tier of %s: %w", tierenv.RemoteVariable, err)
	}
	keys, err := keysOf(c.KeyFile)
	if c.KeyFile == "" && !encrypted && !plain {
		err = errPlain
	}
	switch {
	case err != nil:
		return nil, nil, errors.Join(fmt.Errorf("open the remote tier of %s: %w", tierenv.RemoteVariable, err), inner.Close())
	case keys == nil:
		return inner, inner, nil
	}
	return sealed.New(inner, keys, log), inner, nil
}

// keysOf reads a key file, if there is one.
func keysOf(path string) (sealed.Keys, error) {
	if path == "" {
		return nil, nil
	}
	return sealed.ReadKeys(path)
}

// open opens the tier of an address, and reports whether its requests are encrypted.
func open(ctx context.Context, address string, set map[string]string, log *slog.Logger) (t tier.Tier, encrypted bool, err error) {
	scheme, _, _ := strings.Cut(address, "://")
	if scheme != s3.Scheme {
		t, err := valkey.Open(address, valkey.Options{})
		return t, scheme == "valkeys" || scheme == "rediss" || scheme == "unix", err
	}
	place, err := s3.ParseAddress(address)
	if err != nil {
		return nil, false, err
	}
	place.Variables = set
	objects, err := place.Open(ctx)
	if err != nil {
		return nil, false, err
	}
	objects.Log = log
	return objects, place.Encrypted(), nil
}
