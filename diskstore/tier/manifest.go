package tier

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// MaxManifestBytes bounds the read of a manifest, whose content is not trusted.
const MaxManifestBytes = 1 << 20

// Manifest is the content of <fingerprint>/manifest.json: the identity from which a fingerprint was
// computed, for people and tools, and in a local tier where the model is from.
type Manifest struct {
	Schema      int               `json:"schema"`
	Fingerprint string            `json:"fingerprint"`
	PageTokens  int               `json:"page_tokens"`
	Identity    map[string]string `json:"identity"`
	Origin      string            `json:"origin,omitempty"`
}

// ReadManifest reads a fingerprint's manifest from a tier. ReadManifest returns ErrNotFound,
// pagefile.ErrDamaged, or an error of the tier.
func ReadManifest(ctx context.Context, t Tier, fingerprint pagefile.Key) (*Manifest, error) {
	blob, err := t.Open(ctx, pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassManifest}, false)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	return DecodeManifest(ctx, blob, fingerprint)
}

// DecodeManifest reads an open manifest.
func DecodeManifest(ctx context.Context, blob Blob, fingerprint pagefile.Key) (*Manifest, error) {
	n := blob.Info().Bytes
	if n < 0 || n > MaxManifestBytes {
		return nil, pagefile.Damaged("manifest of %v is %d bytes", fingerprint, n)
	}
	buf := make([]byte, n)
	if err := pagefile.ReadFull(ctx, blob, buf, 0); err != nil {
		return nil, err
	}
	if bytes.HasPrefix(buf, []byte(pagefile.SealedMagic)) {
		return nil, pagefile.Mismatch("the manifest of %v is sealed with the key of a team, which OLLAMA_KV_TIER_KEY_FILE has to name", fingerprint)
	}
	m := new(Manifest)
	if err := json.Unmarshal(buf, m); err != nil {
		return nil, pagefile.Damaged("parse manifest of %v: %v", fingerprint, err)
	}
	if m.Fingerprint != fingerprint.String() {
		return nil, pagefile.Damaged("manifest of %v names fingerprint %q", fingerprint, m.Fingerprint)
	}
	return m, nil
}

// WriteManifest makes m durable in a tier.
func WriteManifest(ctx context.Context, t Disk, fingerprint pagefile.Key, m *Manifest) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}
	name := pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassManifest}
	up, err := t.Create(ctx, name)
	if err != nil {
		return err
	}
	defer up.Abort()
	if err := up.Write(ctx, append(text, '\n')); err != nil {
		return err
	}
	_, err = Store(ctx, t, up, name, time.Now())
	return err
}

// KeyLossyOf is the line of the identity of lossy pages that has the fingerprint of the exact pages
// for which they stand. The other lines are those of the exact pages.
const KeyLossyOf = "lossy_of"

// LossyOf returns the fingerprint of the exact pages for which the pages of a fingerprint stand, and
// false for a fingerprint of exact pages.
func LossyOf(fingerprint pagefile.Key, identity map[string]string) (exact pagefile.Key, lossy bool) {
	exact, err := pagefile.ParseKey(identity[KeyLossyOf])
	return exact, err == nil && pagefile.ColdFingerprint(exact) == fingerprint
}
