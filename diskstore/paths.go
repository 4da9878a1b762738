package diskstore

import (
	"encoding/hex"
	"path/filepath"
	"strings"
)

/*
A root, version 1:

	<root>/v1/<fingerprint>/manifest.json
	<root>/v1/<fingerprint>/<first 2 hex digits of key>/<key>.kvp
	<root>/v1/<fingerprint>/tails/<first 2 of parent>/<parent>/<key>.kvp
	<root>/v1/quarantine/<key>.<reason>.<number>.kvp
	<root>/v1/tmp/<id>.lock, <root>/v1/tmp/<id>-<number>.tmp
	<root>/v1/collect.lock
	<root>/v1/usage.json, <root>/v1/usage.lock

Keys and fingerprints are 64 lower-case hex digits. The directory is the index:
there is no other, so nothing can disagree with it after a crash. usage.json only
bounds how much all of it occupies.
*/
const (
	versionDir    = "v1"
	tailsDir      = "tails"
	quarantineDir = "quarantine"
	tmpDir        = "tmp"
	manifestFile  = "manifest.json"
	collectLock   = "collect.lock"
	ledgerFile    = "usage.json"
	ledgerLock    = "usage.lock"
	pageExt       = ".kvp"
	tmpExt        = ".tmp"
	lockExt       = ".lock"
)

// relPath returns the path of a file below <root>/v1.
func relPath(n Name) string {
	fp := n.Fingerprint.String()
	switch n.Class {
	case ClassManifest:
		return filepath.Join(fp, manifestFile)
	case ClassTail:
		return filepath.Join(tailDir(n.Fingerprint, n.Parent), n.Key.String()+pageExt)
	}
	key := n.Key.String()
	return filepath.Join(fp, key[:2], key+pageExt)
}

// tailDir returns the path below <root>/v1 of the directory of parent's tails.
func tailDir(fingerprint, parent Key) string {
	p := parent.String()
	return filepath.Join(fingerprint.String(), tailsDir, p[:2], p)
}

// shardPath returns the path of a shard's directory below <root>/v1.
func shardPath(s Shard) string {
	first := hex.EncodeToString([]byte{s.First})
	if s.Class == ClassTail {
		return filepath.Join(s.Fingerprint.String(), tailsDir, first)
	}
	return filepath.Join(s.Fingerprint.String(), first)
}

// parsePageFile returns the key of a page's file name, false for any other
// file.
func parsePageFile(base string) (Key, bool) {
	hex, ok := strings.CutSuffix(base, pageExt)
	if !ok {
		return Key{}, false
	}
	key, err := ParseKey(hex)
	return key, err == nil
}

// isShard reports whether base can be the two hex digits of a shard directory.
func isShard(base string) bool {
	const digits = "0123456789abcdef"
	return len(base) == 2 && strings.IndexByte(digits, base[0]) >= 0 && strings.IndexByte(digits, base[1]) >= 0
}
