// Package remote opens the engine that OLLAMA_KV_TIER_REMOTE names in place of a directory. Its clients are
// several megabytes of code, which the patched Ollama goes without.
package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/s3"
	"github.com/kvtier/kvtier/diskstore/tier/sealed"
	"github.com/kvtier/kvtier/diskstore/tier/valkey"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// errPlain reports pages that others could read on the way.
var errPlain = errors.New("its requests are not encrypted, and pages are prompts: use https or valkeys, set " +
	tierenv.KeyFileVariable + " to a file with the team's key, or append plain=1 to the address's parameters")

// Open returns the tier of the settings, nil where that is a directory or there is none. Open asks nothing of the
// engine, which may be away. Errors never have a password.
func Open(ctx context.Context, c tierenv.Config, log *slog.Logger) (tier.Tier, error) {
	if c.Address == "" {
		return nil, nil
	}
	address, plain := strings.CutSuffix(c.Address, "plain=1")
	inner, encrypted, err := open(ctx, strings.TrimRight(address, "?&"), log)
	if err != nil {
		return nil, fmt.Errorf("open the remote tier of %s: %w", tierenv.RemoteVariable, err)
	}
	if c.KeyFile == "" {
		if !encrypted && !plain {
			return nil, errors.Join(fmt.Errorf("open the remote tier of %s: %w", tierenv.RemoteVariable, errPlain), inner.Close())
		}
		return inner, nil
	}
	keys, err := sealed.ReadKeys(c.KeyFile)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the remote tier of %s: %w", tierenv.RemoteVariable, err), inner.Close())
	}
	return sealed.New(inner, keys, log), nil
}

// open opens the tier of an address, and reports whether its requests are encrypted.
func open(ctx context.Context, address string, log *slog.Logger) (t tier.Tier, encrypted bool, err error) {
	scheme, _, _ := strings.Cut(address, "://")
	if scheme != s3.Scheme {
		t, err := valkey.Open(address, valkey.Options{})
		return t, scheme == "valkeys" || scheme == "rediss" || scheme == "unix", err
	}
	place, err := s3.ParseAddress(address)
	if err != nil {
		return nil, false, err
	}
	objects, err := place.Open(ctx)
	if err != nil {
		return nil, false, err
	}
	objects.Log = log
	return objects, place.Encrypted(), nil
}
