package diskstore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// maxManifestBytes bounds what is read of a manifest, which is never trusted.
const maxManifestBytes = 1 << 20

// Manifest is <fingerprint>/manifest.json: what a fingerprint was computed
// from, for people and tools.
type Manifest struct {
	Schema      int               `json:"schema"`
	Fingerprint string            `json:"fingerprint"`
	PageTokens  int               `json:"page_tokens"`
	Identity    map[string]string `json:"identity"`
}

// readManifest reads a fingerprint's manifest from a tier. It returns
// ErrNotFound, ErrDamaged, or an error of the tier.
func readManifest(ctx context.Context, t Tier, fingerprint Key) (*Manifest, error) {
	blob, err := t.Open(ctx, Name{Fingerprint: fingerprint, Class: ClassManifest})
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	return decodeManifest(ctx, blob, fingerprint)
}

// decodeManifest reads an open manifest.
func decodeManifest(ctx context.Context, blob Blob, fingerprint Key) (*Manifest, error) {
	if n := blob.Info().Bytes; n > maxManifestBytes {
		return nil, damaged("manifest of %v is %d bytes", fingerprint, n)
	}
	buf := make([]byte, blob.Info().Bytes)
	if err := readFull(ctx, blob, buf, 0); err != nil {
		return nil, err
	}
	m := new(Manifest)
	if err := json.Unmarshal(buf, m); err != nil {
		return nil, damaged("parse manifest of %v: %v", fingerprint, err)
	}
	if m.Fingerprint != fingerprint.String() {
		return nil, damaged("manifest of %v names fingerprint %q", fingerprint, m.Fingerprint)
	}
	return m, nil
}

// writeManifest makes m durable in a tier.
func writeManifest(ctx context.Context, t Tier, fingerprint Key, m *Manifest) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}
	up, err := t.Create(ctx, Name{Fingerprint: fingerprint, Class: ClassManifest})
	if err != nil {
		return err
	}
	defer up.Abort()
	if err := up.Write(ctx, append(text, '\n')); err != nil {
		return err
	}
	_, err = up.Commit(ctx, time.Now())
	return err
}
