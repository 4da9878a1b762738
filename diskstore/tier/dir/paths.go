package dir

import (
	"encoding/hex"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

/*
A root, version 1:

	<root>/v1/<fingerprint>/manifest.json
	<root>/v1/<fingerprint>/<first 2 hex digits of key>/<key>.kvp
	<root>/v1/<fingerprint>/tails/<first 2 of parent>/<parent>/<key>.kvp
	<root>/v1/<fingerprint>/branches/<first 2 of parent>/<parent>-<key>-<leads>
	<root>/v1/quarantine/<key>.<reason>.<number>.kvp
	<root>/v1/tmp/<id>.lock, <root>/v1/tmp/<id>-<number>.tmp
	<root>/v1/collect.lock
	<root>/v1/usage.json, <root>/v1/usage.lock
	<root>/v1/gone

Keys and fingerprints are 64 lower-case hex digits. Places of pages and
tails follow from their keys, so no index can disagree with the files after a crash. branches
has empty files that lead to pages which begin like a prompt: a lost one costs such a look-up,
and one without its page is removed. usage.json only bounds the bytes that the root occupies.
gone lists pages that were here, for explanations: anything in it may be lost.
*/
const (
	versionDir    = "v1"
	tailsDir      = "tails"
	branchesDir   = "branches"
	quarantineDir = "quarantine"
	tmpDir        = "tmp"
	ManifestFile  = "manifest.json"
	collectLock   = "collect.lock"
	ledgerFile    = "usage.json"
	ledgerLock    = "usage.lock"
	gravesFile    = "gone"
	trialFile     = "trial.json"
	PageExt       = ".kvp"
	TmpExt        = ".tmp"
	LockExt       = ".lock"
)

// relPath returns the path of a file below <root>/v1.
func relPath(n pagefile.Name) string {
	fp := n.Fingerprint.String()
	switch n.Class {
	case pagefile.ClassManifest:
		return filepath.Join(fp, ManifestFile)
	case pagefile.ClassTail:
		return filepath.Join(tailDir(n.Fingerprint, n.Parent), n.Key.String()+PageExt)
	}
	key := n.Key.String()
	return filepath.Join(fp, key[:2], key+PageExt)
}

// tailDir returns the path below <root>/v1 of the directory of parent's tails.
func tailDir(fingerprint, parent pagefile.Key) string {
	p := parent.String()
	return filepath.Join(fingerprint.String(), tailsDir, p[:2], p)
}

// branchDir returns the path below <root>/v1 of the directory of the branches whose parents
// begin with first.
func branchDir(fingerprint pagefile.Key, first byte) string {
	return filepath.Join(fingerprint.String(), branchesDir, hex.EncodeToString([]byte{first}))
}

// branchPath returns the path below <root>/v1 of the empty file that is a branch.
func branchPath(b tier.Branch) string {
	return filepath.Join(branchDir(b.Fingerprint, b.Parent[0]),
		b.Parent.String()+"-"+b.Key.String()+"-"+hex.EncodeToString(b.Leads[:]))
}

// parseBranch returns the branch whose file has the name base, false for any other file.
func parseBranch(fingerprint pagefile.Key, base string) (b tier.Branch, ok bool) {
	parts := strings.Split(base, "-")
	if len(parts) != 3 {
		return b, false
	}
	parent, err := pagefile.ParseKey(parts[0])
	key, err2 := pagefile.ParseKey(parts[1])
	leads, err3 := hex.DecodeString(parts[2])
	if err != nil || err2 != nil || err3 != nil || len(leads) != len(b.Leads) || strings.ToLower(parts[2]) != parts[2] {
		return b, false
	}
	return tier.Branch{Fingerprint: fingerprint, Parent: parent, Key: key, Leads: pagefile.Leads(leads)}, true
}

// shardPath returns the path of a shard's directory below <root>/v1.
func shardPath(s tier.Shard) string {
	first := hex.EncodeToString([]byte{s.First})
	if s.Class == pagefile.ClassTail {
		return filepath.Join(s.Fingerprint.String(), tailsDir, first)
	}
	return filepath.Join(s.Fingerprint.String(), first)
}

// parsePageFile returns the key of a page's file name, false for any other
// file.
func parsePageFile(base string) (pagefile.Key, bool) {
	hex, ok := strings.CutSuffix(base, PageExt)
	if !ok {
		return pagefile.Key{}, false
	}
	key, err := pagefile.ParseKey(hex)
	return key, err == nil
}

// isShard reports whether base can be the two hex digits of a shard directory.
func isShard(base string) bool {
	const digits = "0123456789abcdef"
	return len(base) == 2 && strings.IndexByte(digits, base[0]) >= 0 && strings.IndexByte(digits, base[1]) >= 0
}
