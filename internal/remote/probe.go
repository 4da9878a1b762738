package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/s3"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// Health is what an engine showed.
type Health struct {
	RoundTrip     time.Duration // of a look-up of one page
	Unconditional bool          // it ignores the conditions of a PUT, so nobody collects it
}

// Probe asks the engine of some settings what a server asks: for a page, for the ledger, which a key opens, and for a
// place to write. What Probe writes, it removes. Credentials are those of variables, nil for those of this process:
// then no file of a user's is read. Errors never have a password.
func Probe(ctx context.Context, c tierenv.Config, variables map[string]string) (h Health, err error) {
	t, inner, err := openWith(ctx, c, variables, slog.New(slog.DiscardHandler))
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	var nobodys pagefile.Key
	rand.Read(nobodys[:])
	name := pagefile.Name{Fingerprint: nobodys, Class: pagefile.ClassPage, Key: nobodys}
	for range 2 { // the first one connects
		begin := time.Now()
		if _, err := t.Find(ctx, []pagefile.Name{name}, false); err != nil {
			return h, err
		}
		h.RoundTrip = time.Since(begin)
	}
	content, err := t.Account(ctx, nil)
	if err == nil && bytes.HasPrefix(content, []byte(pagefile.SealedMagic)) {
		err = ledger.ErrSealed
	}
	if err != nil {
		return h, err
	}
	branch := tier.Branch{Fingerprint: nobodys, Longer: true}
	if err := errors.Join(t.AddBranch(ctx, branch, false), t.RemoveBranch(ctx, branch)); err != nil {
		return h, err
	}
	if objects, ok := inner.(*s3.Tier); ok {
		conditional, err := objects.Conditional(ctx)
		h.Unconditional = err == nil && !conditional
		return h, err
	}
	return h, nil
}
