package s3

import (
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Parts of the keys of objects.
const (
	version    = "v1/"
	manifest   = "manifest"
	ledger     = version + "ledger"
	probe      = version + "probe-"
	lock       = version + "lock"
	usesFolder = version + "uses/"
	folded     = usesFolder + "folded"
	quarantine = version + "quarantine/"
	branches   = "/b/"
	longer     = "longer"
	usedMark   = "~" // behind all hex digits
)

// folders are the letters of the classes that have shards.
var folders = map[pagefile.Class]string{pagefile.ClassPage: "p", pagefile.ClassTail: "t"}

func fingerprintKey(fingerprint pagefile.Key) string { return version + fingerprint.String() }

// shardKey ends with a slash.
func shardKey(s tier.Shard) string {
	return fingerprintKey(s.Fingerprint) + "/" + folders[s.Class] + "/" + hex.EncodeToString([]byte{s.First}) + "/"
}

func objectKey(n pagefile.Name) string {
	if n.Class == pagefile.ClassManifest {
		return fingerprintKey(n.Fingerprint) + "/" + manifest
	}
	return shardKey(tier.ShardOf(n)) + n.Key.String()
}

func usedKey(n pagefile.Name, used time.Time) string {
	return objectKey(n) + usedMark + strconv.FormatInt(used.UnixNano(), 10)
}

// parseUsed splits the key of a recency.
func parseUsed(key string) (object string, used time.Time, ok bool) {
	object, digits, ok := strings.Cut(key, usedMark)
	n, err := strconv.ParseInt(digits, 10, 64)
	return object, time.Unix(0, n), ok && err == nil && strconv.FormatInt(n, 10) == digits
}

// branchPrefix is the beginning of the keys of the branches at all prefixes that begin with some bytes.
func branchPrefix(fingerprint pagefile.Key, prefix []byte) string {
	key := fingerprintKey(fingerprint) + branches + hex.EncodeToString(prefix[:1]) + "/" + hex.EncodeToString(prefix)
	if len(prefix) == len(pagefile.Key{}) {
		key += "/"
	}
	return key
}

func branchKey(b tier.Branch) string {
	at := branchPrefix(b.Fingerprint, b.Prefix[:])
	if b.Longer {
		return at + longer
	}
	return at + strings.Join([]string{folders[b.Class], b.Key.String(), strconv.Itoa(b.Tokens), hex.EncodeToString(b.Leads[:])}, "-")
}

// parseBranch is the inverse of branchKey.
func parseBranch(fingerprint pagefile.Key, key string) (b tier.Branch, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) < 2 {
		return b, false
	}
	b.Fingerprint = fingerprint
	var err error
	if b.Prefix, err = pagefile.ParseKey(parts[len(parts)-2]); err != nil {
		return b, false
	}
	fields := strings.Split(parts[len(parts)-1], "-")
	switch {
	case len(fields) == 1:
		b.Longer = true
	case len(fields) == 4:
		b.Class = pagefile.ClassTail
		if fields[0] == folders[pagefile.ClassPage] {
			b.Class = pagefile.ClassPage
		}
		b.Key, _ = pagefile.ParseKey(fields[1])
		b.Tokens, _ = strconv.Atoi(fields[2])
		if len(fields[3]) == 2*len(b.Leads) {
			_, _ = hex.Decode(b.Leads[:], []byte(fields[3]))
		}
	}
	return b, strings.HasSuffix(key, branchKey(b)) // also what could not be parsed differs
}
