package sealed

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/secretfile"
)

const (
	keyBytes = 32
	// keysMost is the number of keys in a file: the one that seals, and a former one.
	keysMost = 2
	// keyFileMost bounds the read of a key file, in bytes.
	keyFileMost = 4096
	// maxNames bounds the fingerprints whose tables a key keeps, about 2 KiB each.
	maxNames = 64
)

// Keys are a team's keys, from ReadKeys. The first one seals.
type Keys []*key

// key is what is derived from one key of a team.
type key struct {
	id           [idBytes]byte
	content      []byte // the secret of files
	names        []byte // the secret of names
	fingerprints []byte // the key of the permutation of fingerprints

	mu    sync.Mutex
	known map[pagefile.Key]*names
}

func newKey(secret []byte) *key {
	k := &key{known: make(map[pagefile.Key]*names)}
	copy(k.id[:], derive(secret, nil, "kvtier id", idBytes))
	k.content = derive(secret, nil, "kvtier content", keyBytes)
	k.names = derive(secret, nil, "kvtier names", keyBytes)
	k.fingerprints = derive(secret, nil, "kvtier fingerprints", keyBytes)
	return k
}

// derive returns n bytes of HKDF with SHA-256.
func derive(secret, salt []byte, info string, n int) []byte {
	out, err := hkdf.Key(sha256.New, secret, salt, info, n)
	if err != nil {
		panic(err) // n is too large
	}
	return out
}

// ReadKeys reads a team's keys from a file: 32 random bytes in hex or base64 on each line. The first key seals.
// A second one only opens what it has sealed when it was the first. Lines that are empty or begin with # are left out.
func ReadKeys(path string) (Keys, error) {
	text, err := secretfile.Read(path, keyFileMost)
	if err != nil {
		return nil, fmt.Errorf("read the keys of a team: %w", err)
	}
	var keys Keys
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		secret, ok := parseSecret(line)
		if !ok {
			return nil, fmt.Errorf("line %d of the key file %s is no key: write 32 bytes in hex or base64, as openssl rand -hex 32 prints them", i+1, path)
		}
		k := newKey(secret)
		if slices.ContainsFunc(keys, func(other *key) bool { return other.id == k.id }) {
			return nil, fmt.Errorf("line %d of the key file %s repeats the key before it: remove the line", i+1, path)
		}
		keys = append(keys, k)
	}
	switch {
	case len(keys) == 0:
		return nil, fmt.Errorf("the key file %s has no key: write what openssl rand -hex 32 prints into it", path)
	case len(keys) > keysMost:
		return nil, fmt.Errorf("the key file %s has %d keys: leave the one that seals, and at most one former key after it", path, len(keys))
	}
	return keys, nil
}

func parseSecret(line string) (secret []byte, ok bool) {
	secret, err := hex.DecodeString(line)
	if err != nil {
		secret, err = base64.StdEncoding.DecodeString(line)
	}
	return secret, err == nil && len(secret) == keyBytes
}
