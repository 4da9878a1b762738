package dir

import (
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

/*
docs/page-format.md shows a root, version 1. Not shown there are

	<root>/v1/quarantine/<key>.<reason>.<number>.kvp
	<root>/v1/tmp/<id>.lock, <root>/v1/tmp/<id>-<number>.tmp
	<root>/v1/collect.lock, <root>/v1/usage.lock

Places of pages and tails follow from their keys, so no index can disagree with the files after a
crash. A branch without its page is removed. usage.json only bounds the bytes that the root occupies.
*/
const (
	versionDir     = "v1"
	tailsDir       = "tails"
	prefixesDir    = "prefixes"
	longerFile     = "longer"
	quarantineDir  = "quarantine"
	tmpDir         = "tmp"
	ManifestFile   = "manifest.json"
	collectLock    = "collect.lock"
	ledgerFile     = "usage.json"
	ledgerLock     = "usage.lock"
	tombstonesFile = "gone"
	PageExt        = ".kvp"
	TmpExt         = ".tmp"
	LockExt        = ".lock"
)

func relPath(n pagefile.Name) string {
	fp := n.Fingerprint.String()
	switch n.Class {
	case pagefile.ClassManifest:
		return filepath.Join(fp, ManifestFile)
	case pagefile.ClassTail:
		first := pagefile.Key{n.Key[0]}.String()
		return filepath.Join(fp, tailsDir, first[:2], first, n.Key.String()+PageExt)
	}
	key := n.Key.String()
	return filepath.Join(fp, key[:2], key+PageExt)
}

// prefixDir returns the path below <root>/v1 of the directory of the branches at a prefix.
func prefixDir(fingerprint, prefix pagefile.Key) string {
	p := prefix.String()
	return filepath.Join(fingerprint.String(), prefixesDir, p[:2], p)
}

// branchPath returns the path below <root>/v1 of the empty file that is a branch.
func branchPath(b tier.Branch) string {
	return filepath.Join(prefixDir(b.Fingerprint, b.Prefix), branchName(b))
}

// branchClasses are the kinds of pages in the names of branches.
var branchClasses = map[string]pagefile.Class{"page": pagefile.ClassPage, "tail": pagefile.ClassTail}

// branchName returns the name of a branch's file, 143 bytes at most: the limit of eCryptfs.
func branchName(b tier.Branch) string {
	if b.Longer {
		return longerFile
	}
	kind := "page"
	if b.Class == pagefile.ClassTail {
		kind = "tail"
	}
	return fmt.Sprintf("%s-%d-%v-%x", kind, b.Tokens, b.Key, b.Leads[:])
}

// parseBranch returns the branch whose file has the name base among those at a prefix, false for
// any other file.
func parseBranch(fingerprint, prefix pagefile.Key, base string) (b tier.Branch, ok bool) {
	b = tier.Branch{Fingerprint: fingerprint, Prefix: prefix, Longer: base == longerFile}
	if b.Longer {
		return b, true
	}
	parts := strings.Split(base, "-")
	if len(parts) != 4 {
		return b, false
	}
	tokens, err := strconv.ParseUint(parts[1], 10, 31)
	key, err2 := pagefile.ParseKey(parts[2])
	leads, err3 := hex.DecodeString(parts[3])
	if err != nil || err2 != nil || err3 != nil || tokens == 0 || len(leads) != len(b.Leads) {
		return b, false
	}
	b.Class, b.Tokens, b.Key, b.Leads = branchClasses[parts[0]], int(tokens), key, pagefile.Leads(leads)
	return b, branchName(b) == base
}

// shardName is the name of the directory of keys that begin with first.
func shardName(first byte) string { return hex.EncodeToString([]byte{first}) }

// shardPath returns the path of a shard's directory below <root>/v1.
func shardPath(s tier.Shard) string {
	first := shardName(s.First)
	if s.Class == pagefile.ClassTail {
		return filepath.Join(s.Fingerprint.String(), tailsDir, first)
	}
	return filepath.Join(s.Fingerprint.String(), first)
}

// parseFile returns the key in the name of a file that ends with ext, false for any other file.
func parseFile(base, ext string) (pagefile.Key, bool) {
	hex, ok := strings.CutSuffix(base, ext)
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
